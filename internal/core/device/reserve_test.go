// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/reservation"
)

func TestReserve_ReturnsDevicesAndRemembersThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1", "b:1"))
		p, _ := start(t, supplied(w))
		next(t, stream(t, p))
		r, err := p.Reserve([]string{"b:1", "a:1"})
		must.NoError(t, err, must.Sprintf("got %+v", r))
		must.Eq(t, "a:1,b:1", r.Envs["IDS"], must.Sprintf("got %+v", r))
		must.SliceLen(t, 2, r.Devices, must.Sprintf("got %+v", r))
		devices, _, err := reservation.Recall(r.Envs)
		must.NoError(t, err, must.Sprint("recalled"))
		must.SliceLen(t, 2, devices, must.Sprint("recalled"))
		test.EqOp(t, *toConfig(r.Devices[1]), *devices[1], test.Sprint("recalled"))
	})
}

func TestReserve_RefusesUnusableDevicesImmediately(t *testing.T) {
	for name, c := range map[string]struct {
		ids  []string
		want string
	}{
		"nothing": {nil, "no device was requested: a constraint in the job names a device that is unhealthy or " +
			"missing"},
		"an unknown one":          {[]string{"z:1"}, `device "z:1" does not exist or was removed (known devices: a:1, b:1, c:1)`},
		"one of two":              {[]string{"a:1", "z:1"}, `device "z:1" does not exist`},
		"an unhealthy one":        {[]string{"c:1"}, `device "c:1" can't be used: there is no tty`},
		"an unhealthy one of two": {[]string{"a:1", "c:1"}, `device "c:1" can't be used: there is no tty`},
		"the same twice":          {[]string{"a:1", "b:1", "a:1"}, `device "a:1" was requested twice`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				w.plug(sticks("ea60", "a:1", "b:1"), ill(sticks("ea60", "c:1"), "there is no tty"))
				p, _ := start(t, supplied(w))
				next(t, stream(t, p))
				before := time.Now()
				r, err := p.Reserve(c.ids)
				wantError(t, err, c.want)
				if r != nil || w.reserved() > 0 || time.Since(before) > 0 {
					t.Errorf("got %+v after %s", r, time.Since(before))
				}
			})
		})
	}
}

func TestReserve_ErrorListsAtMostTenKnownDevices(t *testing.T) {
	s := newSnapshot()
	s.scanned, s.devices = true, map[string]listed{}
	for i := range 12 {
		s.devices[string(rune('a'+i))+":1"] = listed{}
	}
	wantError(t, s.refusal([]string{"z:1"}), `j:1 and 2 more)`)
	delete(s.devices, "l:1")
	delete(s.devices, "k:1")
	wantError(t, s.refusal([]string{"z:1"}), `(known devices: a:1, b:1, c:1, d:1, e:1, f:1, g:1, h:1, i:1, j:1)`)
	s.devices = nil
	wantError(t, s.refusal([]string{"z:1"}), `(known devices: none)`)
}

// If one device can't be reserved at all, Reserve must not wait for the other devices: the task can't be stopped during
// the wait.
func TestReserve_DoesNotWaitAfterFinalError(t *testing.T) {
	s := newSnapshot()
	s.scanned = true
	s.devices = map[string]listed{"a:1": {problem: unplugged, gone: true}, "b:1": {problem: "there is no tty"}, "c:1": {}}
	for _, c := range []struct {
		ids     []string
		passing bool
		want    string
	}{
		{[]string{"a:1"}, true, `device "a:1" is not ready: unplugged`},
		{[]string{"a:1", "c:1"}, true, `device "a:1" is not ready: unplugged`},
		{[]string{"a:1", "b:1"}, false, `device "b:1" can't be used: there is no tty`},
		{[]string{"a:1", "z:1"}, false, `device "z:1" does not exist`},
	} {
		err := s.refusal(c.ids)
		wantError(t, err, c.want)
		test.Eq(t, c.passing, errors.As(err, new(passing)), test.Sprintf("%v: got %T", c.ids, err))
	}
	test.NoError(t, s.refusal([]string{"c:1"}))
	for _, failure := range []error{nil, errors.New("no such bus")} {
		unscanned := newSnapshot()
		if unscanned.failure = failure; !errors.As(unscanned.refusal([]string{"a:1"}), new(passing)) {
			t.Errorf("before the first scan, with the failure %v, Reserve does not wait", failure)
		}
	}
}

// stuck is an instance whose Reserve returns only when its context ends.
type stuck struct{ world }

func (*stuck) Reserve(ctx context.Context, _ []string) (*device.ContainerReservation, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestReserve_HangingInstanceTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuck{}
		w.plug(sticks("ea60", "a:1"))
		s := supplied(w)
		p, _ := start(t, s)
		next(t, stream(t, p))
		before := time.Now()
		_, err := p.Reserve([]string{"a:1"})
		wantError(t, err, "context deadline exceeded")
		test.Eq(t, grantTime, time.Since(before), test.Sprint("it took"))
	})
}

func TestReserve_WaitsForReplug(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		s := supplied(w)
		s.Period = time.Hour // so only Reserve causes scans
		p, _ := start(t, s)
		ch := stream(t, p)
		next(t, ch)
		w.plug()
		p.kick.Kick()
		time.Sleep(time.Second)
		want(t, next(t, ch), "ea60[a:1!unplugged]=-")

		go func() {
			time.Sleep(3 * time.Second)
			w.plug(ill(sticks("ea60", "a:1"), "there is no tty"))
			time.Sleep(2 * time.Second)
			w.plug(sticks("ea60", "a:1"))
		}()
		before := time.Now()
		r, err := p.Reserve([]string{"a:1"})
		must.NoError(t, err, must.Sprintf("got %+v", r))
		must.Eq(t, "a:1", r.Envs["IDS"], must.Sprintf("got %+v", r))
		took := time.Since(before)
		must.False(t, took < 5*time.Second, must.Sprintf("it took %s", took))
		test.False(t, took > 6500*time.Millisecond, test.Sprintf("it took %s", took))
	})
}

// An instance's Reserve may detect before the next scan that a device has vanished.
func TestReserve_WaitsForDeviceThatVanishedAfterScan(t *testing.T) {
	for name, c := range map[string]struct {
		back bool
		want string
	}{
		"the device comes back": {true, ""},
		"the device stays away": {false, `device "a:1" is not ready: unplugged (after a wait of 10s)`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				w.plug(sticks("ea60", "a:1"))
				s := supplied(w)
				s.Period = time.Hour // so only Reserve causes scans
				p, _ := start(t, s)
				next(t, stream(t, p))
				w.plug()
				w.set(func(w *world) { w.refuse = fmt.Errorf("device %q is not ready: %w", "a:1", ErrVanished) })
				go func() {
					time.Sleep(3 * time.Second)
					w.set(func(w *world) { w.refuse = nil })
					if c.back {
						w.plug(sticks("ea60", "a:1"))
					}
				}()
				before := time.Now()
				_, err := p.Reserve([]string{"a:1"})
				if took := time.Since(before); c.back && (err != nil || took < 3*time.Second || took > 4500*time.Millisecond) {
					t.Errorf("got %v after %s", err, took)
				}
				if !c.back {
					wantError(t, err, c.want)
				}
			})
		})
	}
}

// If a device vanishes again after every scan, the error comes from the instance's Reserve.
func TestReserve_EndsIfTheDeviceKeepsVanishing(t *testing.T) {
	for _, settle := range []time.Duration{0, 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) { // hangs if each scan causes a reservation, and each reservation a scan
			w := &world{refuse: fmt.Errorf("device %q is not ready: %w", "a:1", ErrVanished)}
			w.plug(sticks("ea60", "a:1"))
			s := supplied(w)
			s.Settle = settle
			p, _ := start(t, s)
			next(t, stream(t, p))
			_, err := p.Reserve([]string{"a:1"})
			wantError(t, err, `device "a:1" is not ready: the device has vanished since the last scan (after a wait of 10s)`)
			n := w.reserved()
			must.False(t, n < 9, must.Sprintf("asked %d times in 10s", n))
			test.False(t, n > 12, test.Sprintf("asked %d times in 10s", n))
		})
	}
}

// If Reserve does not wait, the error comes from the instance's Reserve.
func TestReserve_WithoutGraceFailsImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{refuse: fmt.Errorf("device %q is not ready: %w", "a:1", ErrVanished)}
		w.plug(sticks("ea60", "a:1"))
		s := supplied(w)
		s.Grace = 0
		p, _ := start(t, s)
		next(t, stream(t, p))
		before := time.Now()
		_, err := p.Reserve([]string{"a:1"})
		wantError(t, err, `device "a:1" is not ready: the device has vanished since the last scan (after a wait of 0s)`)
		took := time.Since(before)
		test.False(t, took > 0, test.Sprintf("it took %s", took))
	})
}

func TestReserve_WaitIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		grace, wait time.Duration
		want        string
	}{
		"no longer than the grace period": {10 * time.Second, 10 * time.Second,
			`device "a:1" is not ready: unplugged (after a wait of 10s)`},
		"no longer than half a minute": {5 * time.Minute, maxWait, `device "a:1" is not ready: unplugged (after a wait of ` +
			`30s)`},
		"not at all without a grace period": {0, 0, `device "a:1" does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				w.plug(sticks("ea60", "a:1"))
				s := supplied(w)
				s.Grace = c.grace
				p, _ := start(t, s)
				next(t, stream(t, p))
				w.plug()
				p.kick.Kick()
				time.Sleep(300 * time.Millisecond)
				synctest.Wait()
				before := time.Now()
				_, err := p.Reserve([]string{"a:1"})
				wantError(t, err, c.want)
				took := time.Since(before)
				must.False(t, took < c.wait-time.Second, must.Sprintf("it took %s, want %s", took, c.wait))
				test.False(t, took > c.wait+time.Second, test.Sprintf("it took %s, want %s", took, c.wait))
			})
		})
	}
}

func TestReserve_WaitsForFirstScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{hang: make(chan struct{})}
		w.plug(sticks("ea60", "a:1"))
		s := supplied(w)
		s.Grace = 0
		p, _ := start(t, s)
		stream(t, p)
		go func() { time.Sleep(5 * time.Second); close(w.hang) }()
		_, err := p.Reserve([]string{"a:1"})
		test.NoError(t, err)
	})
}

// Nomad gives up on a plugin that was killed while it was being configured, but keeps placing jobs with its devices.
func TestReserve_ScansWithoutStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1", "b:1"))
		p, l := start(t, supplied(w))
		for range 2 {
			r, err := p.Reserve([]string{"a:1"})
			must.NoError(t, err, must.Sprintf("got %+v", r))
			must.Eq(t, "a:1", r.Envs["IDS"], must.Sprintf("got %+v", r))
		}
		if w.scanned() != 1 {
			t.Errorf("it scanned %d times", w.scanned())
		}
		w.plug(sticks("ea60", "a:1")) // b:1 vanishes: the plugin must keep scanning
		time.Sleep(2 * time.Minute)
		_, err := p.Reserve([]string{"b:1"})
		wantError(t, err, `device "b:1" does not exist or was removed (known devices: a:1) (Nomad no longer reads the list `+
			`of devices and misses all changes: restart the agent)`)
		n := l.count("restart the agent")
		test.Eq(t, 1, n, test.Sprintf("it is logged %d times", n))

		next(t, stream(t, p)) // the restarted agent opens a stream
		scans := w.scanned()
		time.Sleep(3*time.Minute + time.Second)
		n = w.scanned() - scans
		test.Eq(t, 3, n, test.Sprintf("%d scans in three periods: two loops run", n))
		if _, err := p.Reserve([]string{"b:1"}); err == nil || strings.Contains(err.Error(), "restart") {
			t.Errorf("got %v", err)
		}
	})
}

// After a plugin was killed, Nomad starts it again and repeats all calls. A reservation may come before the stream.
func TestReserve_DoesNotAskForARestartIfAStreamFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		p, l := start(t, supplied(w))
		_, err := p.Reserve([]string{"a:1"})
		must.NoError(t, err)
		want(t, next(t, stream(t, p)), "ea60[a:1]=a:1")
		time.Sleep(time.Minute)
		test.False(t, l.count("restart the agent") > 0, test.Sprintf("it logs %s", l))
	})
}

func TestReserve_ErrorAsksForNoRestartOnceAStreamIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{hang: make(chan struct{})}
		w.plug(sticks("ea60", "a:1"))
		p, _ := start(t, supplied(w))
		failed := make(chan error)
		go func() {
			_, err := p.Reserve([]string{"z:1"})
			failed <- err
		}()
		synctest.Wait() // until the first scan has begun
		stream(t, p)
		close(w.hang)
		err := <-failed
		wantError(t, err, `device "z:1" does not exist`)
		test.StrNotContains(t, err.Error(), "restart", test.Sprintf("got %v", err))
	})
}

func TestReserve_ErrorWithoutStreamSaysWhatToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{err: errors.New("no /sys")}
		p, _ := start(t, supplied(w))
		_, err := p.Reserve([]string{"a:1"})
		wantError(t, err, "devices have not been listed yet: no /sys")
		wantError(t, err, "restart the agent")
	})
}

func TestReserve_ReportsWhyNoListExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{err: errors.New("no such file")}
		p, _ := start(t, supplied(w))
		stream(t, p)
		before := time.Now()
		_, err := p.Reserve([]string{"a:1"})
		wantError(t, err, "devices have not been listed yet: no such file (after a wait of 10s)")
		test.Eq(t, scanWait, time.Since(before), test.Sprint("it took"))
	})
}

func TestReserve_ScansEachSecondWhileWaiting(t *testing.T) {
	for name, w := range map[string]*world{
		"for a re-plug":         {groups: []Group{sticks("ea60", "a:1")}},
		"while all scans fail":  {err: errors.New("no such file")},
		"while all scans panic": {broken: "bad firmware"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := supplied(w)
				s.Settle = 0
				p, _ := start(t, s)
				next(t, stream(t, p))
				w.plug()
				p.kick.Kick()
				synctest.Wait()
				before := w.scanned()
				_, err := p.Reserve([]string{"a:1"})
				test.Error(t, err, test.Sprint("it was reserved"))
				n := w.scanned() - before
				must.False(t, n < 2, must.Sprintf("%d scans in 10 s", n))
				test.False(t, n > 13, test.Sprintf("%d scans in 10 s", n))
			})
		})
	}
}

func TestReserve_EndsWhenThePluginShutsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &world{hang: make(chan struct{})}
		defer close(w.hang)
		p := New(ctx, hclog.NewNullLogger(), Plugin[noConfig]{Name: "test", New: func(noConfig, hclog.Logger) (Instance,
			error) {
			return w, nil
		}})
		must.NoError(t, p.SetConfig(&base.Config{}))
		time.AfterFunc(time.Second, cancel)
		_, err := p.Reserve([]string{"a:1"})
		wantError(t, err, "devices have not been listed yet (the plugin is shutting down)")
	})
}

// An agent panics if a reservation is nil or contains nil (taskrunner/device_hook.go).
func TestReserve_InvalidReservationFailsOnlyItsTask(t *testing.T) {
	for name, c := range map[string]struct {
		reserve func() (*device.ContainerReservation, error)
		want    string
	}{
		"an error": {func() (*device.ContainerReservation, error) { return nil, errors.New("mknod: not permitted") },
			"mknod: not permitted"},
		"a panic": {func() (*device.ContainerReservation, error) { panic("no node") }, "reserve devices: panic: no node"},
		"nothing": {func() (*device.ContainerReservation, error) { return nil, nil }, "empty reservation"},
		"a nil device": {func() (*device.ContainerReservation, error) {
			return &device.ContainerReservation{Devices: []*device.DeviceSpec{nil}}, nil
		}, "empty reservation"},
		"a nil mount": {func() (*device.ContainerReservation, error) {
			return &device.ContainerReservation{Mounts: []*device.Mount{nil}}, nil
		}, "empty reservation"},
		"a relative host path": {func() (*device.ContainerReservation, error) {
			return &device.ContainerReservation{Mounts: []*device.Mount{{HostPath: "lib"}}}, nil
		}, `no driver can use: host path "lib" of a mount`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &harmful{reserve: c.reserve}
				w.plug(sticks("ea60", "a:1"))
				p, _ := start(t, supplied(w))
				ch := stream(t, p)
				next(t, ch)
				r, err := p.Reserve([]string{"a:1"})
				wantError(t, err, c.want)
				test.Nil(t, r)
				time.Sleep(time.Minute)
				silent(t, ch)
			})
		})
	}
}

type harmful struct {
	world
	reserve func() (*device.ContainerReservation, error)
}

func (h *harmful) Reserve(context.Context, []string) (*device.ContainerReservation, error) {
	return h.reserve()
}
