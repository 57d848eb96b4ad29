// Package fingerprint is the loop behind the Fingerprint call of driver and
// device plugins: look at once, when kicked and now and then, and tell Nomad
// only of a real change.
package fingerprint

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"time"
)

// Loop says what to look at and when. Only Probe and Period are needed.
type Loop[T any] struct {
	// Probe looks once and returns a value that it will not change later. It is called
	// from one goroutine at a time. It must return soon after its context ends, since the
	// channel is closed only then. A panic in it is an error of type *PanicError.
	Probe func(context.Context) (T, error)

	// Period is the time from the end of one probe to the next, above zero.
	Period time.Duration

	// Kick asks for a probe now: a device came, a configuration changed. It may be
	// nil. One kick reaches one loop, so each running loop has its own channel.
	Kick <-chan struct{}

	// Settle waits so long after a kick for further ones, and probes once for
	// all of them; zero probes for each.
	Settle time.Duration

	// Failed makes the value to tell of when a probe failed: what Nomad should
	// know then, such as the last value marked unhealthy. last is what the last
	// good probe returned, known whether there was one. With a nil Failed a
	// failure tells nothing and the last value stands.
	Failed func(last T, known bool, err error) T
}

// PanicError is what a probe panicked with.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic while fingerprinting: %v", e.Value) }

// firstRetry is the wait after a failed probe; it doubles to Period.
const firstRetry = time.Second

// Run starts the loop. The first value comes as soon as the first probe has
// ended; further ones when it changed, the newest only where the receiver was
// slow. The channel is closed when ctx ends and never before, since Nomad
// answers a close with a new call at once.
func (l Loop[T]) Run(ctx context.Context) <-chan T {
	values := make(chan T)
	go func() {
		defer close(values)
		l.run(ctx, values)
	}()
	return values
}

func (l Loop[T]) run(ctx context.Context, values chan<- T) {
	var (
		good, told, now T
		known, toldOnce bool
		out             chan<- T // values while there is something to tell
		kick            = l.Kick
		retry           = min(firstRetry, l.Period)
		next            = time.NewTimer(0)
	)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return

		case out <- now:
			told, toldOnce, out = now, true, nil
			continue

		case <-kick:
			if l.Settle > 0 {
				next.Reset(l.Settle)
				kick = nil // until the probe: a storm of kicks must not put it off
				continue
			}

		case <-next.C:
		}

		if l.Settle > 0 && len(l.Kick) > 0 {
			<-l.Kick // before the probe, which is its answer; one during the probe is not lost
		}
		value, err := l.probe(ctx)
		if ctx.Err() != nil {
			return // a probe cut short knows nothing
		}
		kick = l.Kick
		switch {
		case err == nil:
			good, known = value, true
			retry = min(firstRetry, l.Period)
			next.Reset(l.Period)
		default:
			next.Reset(retry)
			retry = min(2*retry, l.Period)
			if errors.As(err, new(*PanicError)) {
				kick = nil // until the retry: kicks must not make it a hot loop
			}
			if l.Failed == nil {
				continue
			}
			value = l.Failed(good, known, err)
		}
		if toldOnce && reflect.DeepEqual(told, value) {
			out = nil // what was about to be told is no longer so
		} else {
			now, out = value, values
		}
	}
}

func (l Loop[T]) probe(ctx context.Context) (value T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Value: r, Stack: debug.Stack()}
		}
	}()
	return l.Probe(ctx)
}
