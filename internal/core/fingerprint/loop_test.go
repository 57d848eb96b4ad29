// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package fingerprint

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// box is a value that a test changes while a probe may read it.
type box[T any] struct {
	mu sync.Mutex
	v  T
}

func (b *box[T]) get() T  { b.mu.Lock(); defer b.mu.Unlock(); return b.v }
func (b *box[T]) set(v T) { b.mu.Lock(); defer b.mu.Unlock(); b.v = v }

// next returns the next value, which must be sent without the clock advancing.
func next[T any](t *testing.T, values <-chan T) T {
	t.Helper()
	synctest.Wait()
	select {
	case v, open := <-values:
		must.True(t, open, must.Sprint("the channel is closed"))
		return v
	default:
		t.Fatal("nothing was sent")
		panic("unreachable")
	}
}

func nothing[T any](t *testing.T, values <-chan T) {
	t.Helper()
	synctest.Wait()
	select {
	case v, open := <-values:
		t.Fatalf("got %v (channel open: %v)", v, open)
	default:
	}
}

func TestLoop_ProbesPeriodicallyAndSendsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var world box[[]string]
		world.set([]string{"1", "2"})
		var probes atomic.Int64
		values := Loop[map[string][]string]{Period: time.Minute, Probe: func(context.Context) (map[string][]string, error) {
			probes.Add(1)
			return map[string][]string{"a": world.get()}, nil
		}}.Run(t.Context())

		v := next(t, values)
		test.SliceLen(t, 2, v["a"], test.Sprintf("got %v", v))
		time.Sleep(10*time.Minute + time.Second)
		nothing(t, values)
		n := probes.Load()
		test.Eq(t, 11, n, test.Sprintf("%d probes in ten periods", n))
		world.set([]string{"2", "1"}) // only the order of a nested slice changes
		time.Sleep(time.Minute)
		v = next(t, values)
		test.Eq(t, "2", v["a"][0], test.Sprintf("got %v", v))
	})
}

func TestLoop_ProbesImmediatelyAfterAKick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kicker, n := NewKicker(), 0
		values := Loop[int]{Period: time.Hour, Kick: kicker, Probe: func(context.Context) (int, error) {
			n++
			return n,
				nil
		}}.Run(t.Context())
		next(t, values)
		kicker.Kick()
		test.Eq(t, 2, next(t, values))
		nothing(t, values)
	})
}

func TestLoop_ProbesOnceForSeveralKicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kicker, n := NewKicker(), 0
		var kickWhile atomic.Bool
		values := Loop[int]{Period: time.Hour, Kick: kicker, Settle: 100 * time.Millisecond,
			Probe: func(context.Context) (int, error) {
				if n++; kickWhile.Swap(false) {
					kicker.Kick()
				}
				return n, nil
			}}.Run(t.Context())
		next(t, values)
		for range 9 {
			kicker.Kick()
			time.Sleep(10 * time.Millisecond)
		}
		nothing(t, values)
		time.Sleep(20 * time.Millisecond)
		test.Eq(t, 2, next(t, values))
		time.Sleep(time.Second)
		nothing(t, values)

		kickWhile.Store(true) // kick during the next probe, which may miss a change that happens while it runs
		kicker.Kick()
		time.Sleep(time.Second)
		test.Eq(t, 4, next(t, values), test.Sprint("a kick during the probe was lost"))
	})
}

func TestLoop_SlowReceiverGetsTheNewestValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var world atomic.Int64
		values := Loop[int64]{Period: time.Second, Probe: func(context.Context) (int64, error) {
			return world.Load(),
				nil
		}}.Run(t.Context())
		next(t, values)
		for i := range 5 {
			world.Store(int64(i + 1))
			time.Sleep(2 * time.Second)
		}
		test.Eq(t, 5, next(t, values), test.Sprint("got an outdated value"))
		world.Store(9)
		time.Sleep(2 * time.Second)
		world.Store(5) // the value that was sent last
		time.Sleep(2 * time.Second)
		nothing(t, values)
	})
}

func TestLoop_SendsAFailureAndRetriesBeforeThePeriodEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := errors.New("no such device")
		var world box[error]
		world.set(fail)
		l := Loop[string]{Period: time.Minute, Probe: func(context.Context) (string, error) { return "good", world.get() },
			Failed: func(err error) string { return "failed: " + err.Error() }}
		values := l.Run(t.Context())
		test.Eq(t, "failed: no such device", next(t, values))
		world.set(nil)
		time.Sleep(1100 * time.Millisecond)
		test.Eq(t, "good", next(t, values))
		world.set(fail)
		time.Sleep(time.Minute)
		test.Eq(t, "failed: no such device", next(t, values))
	})
}

func TestLoop_BacksOffAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kicker := NewKicker()
		var probes atomic.Int64
		var failure box[error]
		values := Loop[string]{Period: time.Minute, Kick: kicker,
			Probe:  func(context.Context) (string, error) { probes.Add(1); panic("bad firmware") },
			Failed: func(err error) string { failure.set(err); return err.Error() },
		}.Run(t.Context())
		test.Eq(t, "panic: bad firmware", next(t, values))
		var p *PanicError
		if !errors.As(failure.get(), &p) || len(p.Stack) == 0 {
			t.Errorf("got %v without a stack", failure.get())
		}
		for range 100 { // within half a second
			kicker.Kick()
			time.Sleep(5 * time.Millisecond)
		}
		n := probes.Load()
		test.Eq(t, 1, n, test.Sprintf("a panic and 100 kicks caused %d probes", n))
		time.Sleep(time.Hour)
		n = probes.Load()
		must.False(t, n < 60, must.Sprintf("%d probes in an hour of panics, period a minute", n))
		test.False(t, n > 70, test.Sprintf("%d probes in an hour of panics, period a minute", n))
	})
}

func TestLoop_ClosesItsChannelWithItsContext(t *testing.T) {
	for name, take := range map[string]bool{"while it waits": true, "while nobody receives": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				values := Loop[int]{Period: time.Minute, Probe: func(context.Context) (int, error) { return 1, nil }}.Run(ctx)
				if take {
					next(t, values)
				}
				synctest.Wait()
				cancel()
				synctest.Wait()
				v, open := <-values
				test.False(t, open, test.Sprintf("got %d from an ended loop", v))
			})
		})
	}
}

func TestLoop_CancelsAProbeWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		values := Loop[string]{Period: time.Minute,
			Probe:  func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() },
			Failed: func(err error) string { return err.Error() },
		}.Run(ctx)
		nothing(t, values)
		cancel()
		synctest.Wait()
		v, open := <-values
		test.False(t, open, test.Sprintf("got %q from an ended loop", v))
	})
}

func TestLoop_SendsNothingAfterEnd(t *testing.T) {
	for range 100 { // repeat, because select picks a random case if several are ready
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			values := Loop[int]{Period: time.Minute, Probe: func(context.Context) (int, error) {
				cancel()
				return 7,
					nil
			}}.Run(ctx)
			v, open := <-values
			test.False(t, open, test.Sprintf("got %d", v))
		})
	}
}

func TestLoop_SuccessResetsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		values := Loop[int]{Period: time.Minute, Probe: func(context.Context) (int, error) {
			at = append(at, time.Since(start))
			if len(at) == 4 {
				return 1, nil
			}
			return 0, errors.New("not yet")
		}, Failed: func(error) int { return 0 }}.Run(ctx)
		for range values {
		}
		// in seconds; the probe fails three times, succeeds once, and then fails again
		want := []time.Duration{0, 1, 3, 7, 67, 68, 70, 74, 82}
		for i, w := range want {
			must.False(t, i >= len(at), must.Sprintf("probes are at %v, want %v s", at, want))
			must.Eq(t, w*time.Second, at[i], must.Sprintf("probes are at %v, want %v s", at, want))
		}
	})
}
