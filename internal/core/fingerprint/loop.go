// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package fingerprint implements the loop behind the Fingerprint call of driver and device plugins. It probes
// immediately, after a kick and periodically, and sends Nomad a value only when it has changed.
package fingerprint

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"time"
)

// Loop configures what to probe and when. Probe, Period and Failed are required.
type Loop[T any] struct {
	// Probe probes once and returns a value that must not change later. It is called from one goroutine at a time. It must
	// return soon after ctx ends, because Run can close its channel only then. A panic is treated as an error of type
	// *PanicError.
	Probe func(context.Context) (T, error)

	// Period is the time from the end of one probe to the next. It must be positive.
	Period time.Duration

	// Kick requests an immediate probe, such as after a device was added. It may be nil. A kick reaches only one loop, so
	// loops must not share a channel.
	Kick <-chan struct{}

	// Settle is the time from a kick to the probe that it causes. This probe also serves all further kicks until then.
	// If Settle is zero, each kick causes its own probe immediately.
	Settle time.Duration

	// Failed returns the value to send after a failed probe, such as the last value marked unhealthy.
	Failed func(error) T
}

// PanicError is the error of a function that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// firstRetry is the delay after a failed probe. Each further failure doubles the delay, up to Period.
const firstRetry = time.Second

// Run starts the loop. The first value is sent when the first probe has ended, further ones when the value has changed.
// A slow receiver gets only the newest value. The channel is closed only when ctx ends, because Nomad calls Fingerprint
// again immediately after a close.
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
		sent, now T
		sentOnce  bool
		out       chan<- T // values while a value waits to be sent, otherwise nil
		kick      = l.Kick
		retry     = min(firstRetry, l.Period)
		next      = time.NewTimer(0)
	)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return

		case out <- now:
			sent, sentOnce, out = now, true, nil
			continue

		case <-kick:
			if l.Settle > 0 {
				next.Reset(l.Settle)
				kick = nil // ignore further kicks, which would delay the probe
				continue
			}

		case <-next.C:
		}

		if l.Settle > 0 && len(l.Kick) > 0 {
			<-l.Kick // the probe below serves this kick; a kick during the probe causes another probe
		}
		var value T
		err := Guard(func() (err error) {
			value, err = l.Probe(ctx)
			return err
		})
		if ctx.Err() != nil {
			return // the result of a canceled probe is meaningless
		}
		kick = l.Kick
		switch {
		case err == nil:
			retry = min(firstRetry, l.Period)
			next.Reset(l.Period)
		default:
			next.Reset(retry)
			retry = min(2*retry, l.Period)
			if errors.As(err, new(*PanicError)) {
				kick = nil // ignore kicks until the retry: kicks and panics must not become a busy loop
			}
			value = l.Failed(err)
		}
		if sentOnce && reflect.DeepEqual(sent, value) {
			out = nil // drop a value that waits: the receiver already has the current one
		} else {
			now, out = value, values
		}
	}
}

// Guard calls f, and returns a panic in f as an error of type *PanicError. Otherwise a panic would end the process with
// all its streams, and occur again as soon as the process is restarted.
func Guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Value: r, Stack: debug.Stack()}
		}
	}()
	return f()
}
