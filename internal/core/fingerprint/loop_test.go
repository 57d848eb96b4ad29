package fingerprint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// box is a piece of the world that a test changes while a probe may look at it.
type box[T any] struct {
	mu sync.Mutex
	v  T
}

func (b *box[T]) get() T  { b.mu.Lock(); defer b.mu.Unlock(); return b.v }
func (b *box[T]) set(v T) { b.mu.Lock(); defer b.mu.Unlock(); b.v = v }

// next takes a value that must be there without time passing.
func next[T any](t *testing.T, values <-chan T) T {
	t.Helper()
	synctest.Wait()
	select {
	case v, open := <-values:
		if !open {
			t.Fatal("the channel is closed")
		}
		return v
	default:
		t.Fatal("nothing was told")
		panic("unreachable")
	}
}

func nothing[T any](t *testing.T, values <-chan T) {
	t.Helper()
	synctest.Wait()
	select {
	case v, open := <-values:
		t.Fatalf("told of %v (channel open: %v)", v, open)
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

		if v := next(t, values); len(v["a"]) != 2 {
			t.Errorf("got %v", v)
		}
		time.Sleep(10*time.Minute + time.Second)
		nothing(t, values)
		if n := probes.Load(); n != 11 {
			t.Errorf("%d probes in ten periods", n)
		}
		world.set([]string{"2", "1"}) // a change deep down, of order only
		time.Sleep(time.Minute)
		if v := next(t, values); v["a"][0] != "2" {
			t.Errorf("got %v", v)
		}
	})
}

func TestLoop_KickProbesNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kicker, n := NewKicker(), 0
		values := Loop[int]{Period: time.Hour, Kick: kicker, Probe: func(context.Context) (int, error) {
			n++
			return n,
				nil
		}}.Run(t.Context())
		next(t, values)
		kicker.Kick()
		if v := next(t, values); v != 2 {
			t.Errorf("got %d", v)
		}
		nothing(t, values)
	})
}

func TestLoop_KicksSettleToOneProbe(t *testing.T) {
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
		if v := next(t, values); v != 2 {
			t.Errorf("got %d", v)
		}
		time.Sleep(time.Second)
		nothing(t, values)

		kickWhile.Store(true) // what changes during a probe may not have been seen by it
		kicker.Kick()
		time.Sleep(time.Second)
		if v := next(t, values); v != 4 {
			t.Errorf("a kick during the probe was lost: got %d", v)
		}
	})
}

func TestLoop_SlowReceiverGetsNewest(t *testing.T) {
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
		if v := next(t, values); v != 5 {
			t.Errorf("got the stale %d", v)
		}
		world.Store(9)
		time.Sleep(2 * time.Second)
		world.Store(5) // back to what was told
		time.Sleep(2 * time.Second)
		nothing(t, values)
	})
}

func TestLoop_SendsFailureAndRetriesSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := errors.New("no such device")
		var world box[error]
		world.set(fail)
		l := Loop[string]{Period: time.Minute, Probe: func(context.Context) (string, error) { return "good", world.get() },
			Failed: func(last string, known bool, err error) string { return fmt.Sprintf("%s %t %v", last, known, err) }}
		values := l.Run(t.Context())
		if v := next(t, values); v != " false no such device" {
			t.Errorf("got %q", v)
		}
		world.set(nil)
		time.Sleep(1100 * time.Millisecond)
		if v := next(t, values); v != "good" {
			t.Errorf("got %q", v)
		}
		world.set(fail)
		time.Sleep(time.Minute)
		if v := next(t, values); v != "good true no such device" {
			t.Errorf("got %q", v)
		}
	})
}

func TestLoop_WithoutFailedKeepsLastValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var world box[error]
		values := Loop[int]{Period: time.Minute, Probe: func(context.Context) (int, error) {
			return 1,
				world.get()
		}}.Run(t.Context())
		next(t, values)
		world.set(errors.New("gone"))
		time.Sleep(time.Hour)
		nothing(t, values)
	})
}

func TestLoop_PanicBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kicker := NewKicker()
		var probes atomic.Int64
		var failure box[error]
		values := Loop[string]{Period: time.Minute, Kick: kicker,
			Probe:  func(context.Context) (string, error) { probes.Add(1); panic("bad firmware") },
			Failed: func(_ string, _ bool, err error) string { failure.set(err); return err.Error() },
		}.Run(t.Context())
		if v := next(t, values); v != "panic while fingerprinting: bad firmware" {
			t.Errorf("got %q", v)
		}
		var p *PanicError
		if !errors.As(failure.get(), &p) || len(p.Stack) == 0 {
			t.Errorf("got %v without a stack", failure.get())
		}
		for range 100 { // in half a second
			kicker.Kick()
			time.Sleep(5 * time.Millisecond)
		}
		if n := probes.Load(); n != 1 {
			t.Errorf("kicks made %d probes of one that panics", n)
		}
		time.Sleep(time.Hour)
		if n := probes.Load(); n < 60 || n > 70 {
			t.Errorf("%d probes in an hour of panics, period a minute", n)
		}
	})
}

func TestLoop_ClosesWithContextOnly(t *testing.T) {
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
				if v, open := <-values; open {
					t.Errorf("got %d from an ended loop", v)
				}
			})
		})
	}
}

func TestLoop_ContextEndsProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		values := Loop[string]{Period: time.Minute,
			Probe:  func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() },
			Failed: func(_ string, _ bool, err error) string { return err.Error() },
		}.Run(ctx)
		nothing(t, values)
		cancel()
		synctest.Wait()
		if v, open := <-values; open {
			t.Errorf("got %q from an ended loop", v)
		}
	})
}

func TestLoop_SendsNothingAfterEnd(t *testing.T) {
	for range 100 { // of two that are ready, select takes any
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			values := Loop[int]{Period: time.Minute, Probe: func(context.Context) (int, error) {
				cancel()
				return 7,
					nil
			}}.Run(ctx)
			if v, open := <-values; open {
				t.Errorf("told of %d", v)
			}
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
		}}.Run(ctx)
		for range values {
		}
		// in seconds; it fails three times, and again after its success
		want := []time.Duration{0, 1, 3, 7, 67, 68, 70, 74, 82}
		for i, w := range want {
			if i >= len(at) || at[i] != w*time.Second {
				t.Fatalf("probes are at %v, want %v s", at, want)
			}
		}
	})
}
