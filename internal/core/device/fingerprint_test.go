// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestFingerprint_SendsFirstListAndChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "b:1", "a:1"), sticks("ea61", "c:1"))
		p, _ := start(t, supplied(w))
		ch := stream(t, p)
		want(t, next(t, ch), "ea60[a:1 b:1]=a:1,b:1 ea61[c:1]=c:1")

		w.plug(sticks("ea61", "c:1"), sticks("ea60", "a:1", "b:1")) // equal groups, in another order and with new pointers
		time.Sleep(10 * time.Minute)
		silent(t, ch)
		n := w.scanned()
		test.False(t, n < 10, test.Sprintf("%d scans in ten minutes", n))

		changed := sticks("ea61", "c:1")
		changed.Attributes["speed"] = structs.NewIntAttribute(12, "")
		w.plug(sticks("ea60", "a:1", "b:1"), changed)
		time.Sleep(time.Minute)
		if g := nextGroups(t, ch); len(g) != 2 || *g[1].Attributes["speed"].Int != 12 {
			t.Errorf("got %s", listing(g))
		}
	})
}

func TestFingerprint_SendsAnEmptyListWithoutDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := start(t, supplied(&world{}))
		ch := stream(t, p)
		want(t, next(t, ch), "")
		time.Sleep(time.Hour)
		silent(t, ch)
	})
}

func TestFingerprint_FailedFirstScanSendsEmptyList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{err: errors.New("no such file")}
		p, log := start(t, supplied(w))
		ch := stream(t, p)
		want(t, next(t, ch), "")
		time.Sleep(time.Hour)
		silent(t, ch)
		n := log.count("the last list stays valid: no such file")
		test.Eq(t, 1, n, test.Sprintf("%d lines in\n%s", n, log))
		w.set(func(w *world) { w.err, w.groups = nil, []Group{sticks("ea60", "a:1")} })
		time.Sleep(time.Minute)
		want(t, next(t, ch), "ea60[a:1]=a:1")
		test.Eq(t, 1, log.count("scanning for devices works again"), test.Sprintf("got\n%s", log))
	})
}

func TestFingerprint_HangingFirstScanSendsEmptyListSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{hang: make(chan struct{})}
		w.plug(sticks("ea60", "a:1"))
		p, log := start(t, supplied(w))
		ch := stream(t, p)
		silent(t, ch)
		time.Sleep(firstWait)
		want(t, next(t, ch), "")
		test.Eq(t, 1, log.count("the first scan for devices is slow"), test.Sprintf("got\n%s", log))
		time.Sleep(time.Minute)
		silent(t, ch)
		close(w.hang)
		want(t, next(t, ch), "ea60[a:1]=a:1")
	})
}

func TestFingerprint_HangingFirstScanSendsOneEmptyList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{hang: make(chan struct{})}
		p, _ := start(t, supplied(w))
		ch := stream(t, p)
		time.Sleep(firstWait)
		want(t, next(t, ch), "")
		close(w.hang)
		time.Sleep(time.Hour)
		silent(t, ch)
	})
}

func TestFingerprint_FailedScanKeepsList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		p, log := start(t, supplied(w))
		ch := stream(t, p)
		next(t, ch)
		for _, broken := range []func(*world){
			func(w *world) { w.err = errors.New("libusb: no device [code -4]") },
			func(w *world) { w.err, w.broken = nil, "libusb: unknown error" },
		} {
			w.set(broken)
			time.Sleep(time.Hour)
			silent(t, ch)
			_, err := p.Reserve([]string{"a:1"})
			test.NoError(t, err, test.Sprint("a listed device can't be reserved"))
		}
		must.Eq(t, 1, log.count("code -4"), must.Sprintf("got\n%s", log))
		must.Eq(t, 1, log.count("panic: libusb"), must.Sprintf("got\n%s", log))
		test.Eq(t, 1, log.count("stack="), test.Sprintf("got\n%s", log))
	})
}

func TestFingerprint_BacksOffAfterPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{broken: "bad firmware"}
		p, _ := start(t, supplied(w))
		ch := stream(t, p)
		want(t, next(t, ch), "")
		for range 600 { // a minute of kicks
			p.kick.Kick()
			time.Sleep(100 * time.Millisecond)
		}
		n := w.scanned()
		test.False(t, n > 10, test.Sprintf("%d scans that panic in a minute", n))
	})
}

func TestFingerprint_ReplugKeepsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1", "b:1"))
		p, _ := start(t, supplied(w))
		ch := stream(t, p)
		next(t, ch)

		w.plug(sticks("ea60", "b:1"))
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		want(t, next(t, ch), "ea60[a:1!unplugged b:1]=b:1")

		w.plug(sticks("ea60", "a:1", "b:1"))
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		want(t, next(t, ch), "ea60[a:1 b:1]=a:1,b:1")
		time.Sleep(time.Hour)
		silent(t, ch)
	})
}

func TestFingerprint_DropsADeviceAfterGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"), sticks("ea61", "b:1"))
		p, _ := start(t, supplied(w))
		ch := stream(t, p)
		next(t, ch)

		w.plug(sticks("ea61", "b:1"))
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		groups := nextGroups(t, ch)
		want(t, listing(groups), "ea60[a:1!unplugged]=- ea61[b:1]=b:1")
		if a := groups[0].Attributes["usb_id"]; a == nil || *a.String != "10c4:ea60" {
			t.Errorf("the attributes of a group are lost with its last device: %v", groups[0].Attributes)
		}
		time.Sleep(10*time.Second - time.Millisecond)
		silent(t, ch)
		time.Sleep(301 * time.Millisecond) // less than a period, so only the end of the grace period can cause a scan
		want(t, next(t, ch), "ea61[b:1]=b:1")
	})
}

func TestFingerprint_DevicesVanishOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1", "b:1"))
		p, _ := start(t, supplied(w))
		ch := stream(t, p)
		next(t, ch)
		w.plug(sticks("ea60", "a:1"))
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		want(t, next(t, ch), "ea60[a:1 b:1!unplugged]=a:1")
		time.Sleep(5 * time.Second)
		w.plug()
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		want(t, next(t, ch), "ea60[a:1!unplugged b:1!unplugged]=-")
		time.Sleep(5 * time.Second)
		want(t, next(t, ch), "ea60[a:1!unplugged]=-")
		time.Sleep(5*time.Second + 300*time.Millisecond)
		want(t, next(t, ch), "")
	})
}

func TestFingerprint_DropsADeviceImmediatelyWithoutGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		s := supplied(w)
		s.Grace = 0
		p, _ := start(t, s)
		ch := stream(t, p)
		next(t, ch)
		w.plug()
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		want(t, next(t, ch), "")
	})
}

func TestFingerprint_UnhealthyDeviceHasItsOwnGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1", "b:1"))
		p, _ := start(t, supplied(w))
		ch := stream(t, p)
		next(t, ch)

		w.plug(sticks("ea60", "a:1"), ill(sticks("ea60", "b:1"), "there is no tty"))
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		groups := nextGroups(t, ch)
		want(t, listing(groups), "ea60[a:1]=a:1 ea60 (unhealthy)[b:1!there is no tty]=-")
		if *groups[1].Attributes["usb_id"].String != "10c4:ea60" {
			t.Errorf("got attributes %v", groups[1].Attributes)
		}

		w.plug(sticks("ea60", "a:1", "b:1"))
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		want(t, next(t, ch), "ea60[a:1 b:1]=a:1,b:1")
	})
}

// The tty appears later than its device, or only after the kernel has loaded the driver.
func TestFingerprint_IncompleteReplugKeepsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		p, _ := start(t, supplied(w))
		ch := stream(t, p)
		next(t, ch)
		w.plug()
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		want(t, next(t, ch), "ea60[a:1!unplugged]=-")

		w.plug(ill(sticks("ea60", "a:1"), "there is no tty"))
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		want(t, next(t, ch), "ea60[a:1!there is no tty]=-")
		time.Sleep(10 * time.Second)
		want(t, next(t, ch), "ea60 (unhealthy)[a:1!there is no tty]=-")
		w.plug(sticks("ea60", "a:1"))
		p.kick.Kick()
		time.Sleep(300 * time.Millisecond)
		want(t, next(t, ch), "ea60[a:1]=a:1")
	})
}

func TestFingerprint_EndsOnlyWithItsContext(t *testing.T) {
	for reader, take := range map[string]bool{"that reads": true, "that never reads": false} {
		t.Run("with an agent "+reader, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
				w := &world{}
				w.plug(sticks("ea60", "a:1"))
				p, _ := start(t, supplied(w))
				ctx, cancel := context.WithCancel(t.Context())
				ch, err := p.Fingerprint(ctx)
				must.NoError(t, err)
				if take {
					next(t, ch)
				}
				time.Sleep(time.Hour)
				cancel()
				synctest.Wait()
				r, open := <-ch
				test.False(t, open, test.Sprintf("got %+v from an ended stream", r))
			})
		})
	}
}

func TestFingerprint_EndsWhileAScanHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{hang: make(chan struct{})}
		p, _ := start(t, supplied(w))
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := p.Fingerprint(ctx)
		must.NoError(t, err)
		cancel()
		synctest.Wait()
		_, open := <-ch
		test.False(t, open, test.Sprint("got a list"))
		close(w.hang)
	})
}

func TestFingerprint_SecondStreamTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		p, _ := start(t, supplied(w))
		first := stream(t, p)
		next(t, first)
		second := stream(t, p)
		want(t, next(t, second), "ea60[a:1]=a:1")

		w.plug()
		p.kick.Kick()
		time.Sleep(time.Second)
		want(t, next(t, second), "ea60[a:1!unplugged]=-")
		silent(t, first) // the first stream has not ended
	})
}

func TestFingerprint_ScansNeverOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{hang: make(chan struct{})}
		w.plug(sticks("ea60", "a:1"))
		p, _ := start(t, supplied(w))
		stream(t, p)
		synctest.Wait()
		second := stream(t, p)
		time.Sleep(time.Minute)
		n := w.scanned()
		test.Eq(t, 1, n, test.Sprintf("%d scans at a time", n))
		want(t, next(t, second), "")
		close(w.hang)
		want(t, next(t, second), "ea60[a:1]=a:1")
	})
}

func TestFingerprint_ScansLeakNothing(t *testing.T) {
	w := &world{}
	w.plug(sticks("ea60", "a:1"))
	s := supplied(w)
	s.Settle = 0
	p, _ := start(t, s)
	<-stream(t, p)
	scan := func(n int) {
		for end := w.scanned() + n; w.scanned() < end; runtime.Gosched() {
			p.kick.Kick()
		}
	}
	scan(10)
	held := func() [2]int {
		files, _ := os.ReadDir("/proc/self/fd")
		return [2]int{runtime.NumGoroutine(), len(files)}
	}
	before := held()
	scan(1000)
	if now := held(); now[0] > before[0] || now[1] > before[1] {
		t.Errorf("%d goroutines and %d files, before %d and %d", now[0], now[1], before[0], before[1])
	}
}

func TestEvents_CauseScansAndAreRestartedAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		var calls atomic.Int64
		var kick func()
		s := supplied(w)
		s.Period = time.Hour
		s.events = events(func(ctx context.Context, k func()) error {
			switch calls.Add(1) {
			case 1:
				return errors.New("no buffer space available")
			case 2:
				return errors.New("no buffer space available")
			case 3:
				panic("short read")
			case 4:
				return nil
			}
			kick = k
			<-ctx.Done()
			return nil
		})
		p, log := start(t, s)
		ch := stream(t, p)
		next(t, ch)
		time.Sleep(2500 * time.Millisecond) // the delays after the errors are 1 s, then 2 s
		synctest.Wait()
		n := calls.Load()
		test.Eq(t, 2, n, test.Sprintf("%d calls after 2.5 s", n))
		time.Sleep(time.Minute)
		synctest.Wait()
		n = calls.Load()
		test.Eq(t, 5, n, test.Sprintf("%d calls", n))
		for text, n := range map[string]int{"no buffer space available": 1, "panic: short read": 1, "event stream ended": 1} {
			test.Eq(t, n, log.count(text), test.Sprintf("%q does not occur %d times in\n%s", text, n, log))
		}
		w.plug(sticks("ea60", "a:1"))
		for range 3 {
			kick()
			time.Sleep(50 * time.Millisecond)
		}
		silent(t, ch)
		before := w.scanned()
		time.Sleep(150 * time.Millisecond)
		want(t, next(t, ch), "ea60[a:1]=a:1")
		if n := w.scanned() - before; n != 1 {
			t.Errorf("%d scans of three kicks", n)
		}
	})
}

type events func(ctx context.Context, kick func()) error

func (e events) Events(ctx context.Context, kick func()) error { return e(ctx, kick) }

// tuned is an instance with options.
type tuned struct {
	Instance
	options Options
}

func (i tuned) Options() Options { return i.options }

func TestSetConfig_MayBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		configured := 0
		p := New(t.Context(), hclog.NewNullLogger(), Plugin[noConfig]{Name: "test"})
		p.configure = func([]byte) (*instance, error) {
			configured++
			s := supplied(w)
			s.events = events(func(context.Context, func()) error { t.Error("listens already"); return nil })
			return s, nil
		}
		for range 3 {
			must.NoError(t, p.SetConfig(&base.Config{PluginConfig: []byte{0x80}}))
		}
		time.Sleep(time.Hour)
		if configured != 1 || w.scanned() != 0 {
			t.Errorf("configured %d times, %d scans", configured, w.scanned())
		}
	})
}

func TestSetConfig_RefusesBadOptions(t *testing.T) {
	w := &world{}
	for text, i := range map[string]Instance{
		"the plugin created no instance":                    nil,
		"the time between scans is 0s: use 50ms or more":    tuned{w, Options{}},
		"the time between scans is -1s: use 50ms or more":   tuned{w, Options{Period: -time.Second}},
		"settle time 0s or grace time -1s is negative: use": tuned{w, Options{Period: time.Second, Grace: -time.Second}},
	} {
		p := New(t.Context(), hclog.NewNullLogger(), Plugin[noConfig]{
			Name: "test", New: func(noConfig, hclog.Logger) (Instance, error) {
				return i, nil
			}})
		wantError(t, p.SetConfig(&base.Config{}), text)
		_, err := p.Fingerprint(t.Context())
		wantError(t, err, "no configuration yet")
	}
}
