// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/reservation"
)

// pool is a plugin whose devices are data sets. A data set is mounted in one task at a time. Its
// holder is recorded in the data set itself, which outlives the plugin.
type pool struct {
	mu       sync.Mutex
	sets     map[string]*dataset
	epoch    int
	fail     error // returned by Reserve after it has recorded the holders
	damaged  error // returned by Leases
	released []string
	look     time.Duration // how long the next call of Leases waits after it has read the records
	overlaps int           // calls for a device that began during another call for the same device
	panics   bool          // Release panics
}

type dataset struct {
	holder string
	ended  bool
	busy   bool          // a process uses the data set
	slow   time.Duration // how long a release takes
	calls  int           // calls in progress
}

func (p *pool) List(context.Context) ([]Group, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := Group{Vendor: "zfs", Type: "dataset", Name: "tank"}
	for id := range p.sets {
		g.Devices = append(g.Devices, Device{ID: id})
	}
	return []Group{g}, nil
}

// enter records the start of a call for these devices, and counts calls that overlap. The caller holds p.mu.
func (p *pool) enter(ids ...string) (leave func()) {
	for _, id := range ids {
		if p.sets[id].calls++; p.sets[id].calls > 1 {
			p.overlaps++
		}
	}
	return func() {
		for _, id := range ids {
			p.sets[id].calls--
		}
	}
}

func (p *pool) Reserve(_ context.Context, ids []string) (*device.ContainerReservation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.enter(ids...)()
	r := &device.ContainerReservation{Envs: map[string]string{"DATASET": ids[0]}}
	for _, id := range ids {
		if holder := p.sets[id].holder; holder != "" {
			return nil, fmt.Errorf("dataset %s is held by %s", id, holder)
		}
		p.epoch++
		p.sets[id].holder, p.sets[id].ended = fmt.Sprintf("reservation %d", p.epoch), false
		r.Mounts = append(r.Mounts, &device.Mount{HostPath: "/tank/" + id, TaskPath: "/" + id})
	}
	return r, p.fail
}

func (p *pool) Leases(context.Context, ...string) (all []Lease, err error) {
	p.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(p.sets)) {
		if s := p.sets[id]; s.holder != "" {
			all = append(all, Lease{ID: id, Holder: s.holder, Key: "key of " + s.holder, Ended: s.ended})
		}
	}
	look, err := p.look, p.damaged
	p.look = 0
	p.mu.Unlock()
	time.Sleep(look)
	return all, err
}

func (p *pool) Release(ctx context.Context, l Lease) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sets[l.ID]
	defer p.enter(l.ID)()
	p.mu.Unlock()
	select {
	case <-time.After(s.slow):
	case <-ctx.Done():
	}
	p.mu.Lock()
	switch {
	case p.panics:
		panic("no such set")
	case ctx.Err() != nil:
		return ctx.Err()
	case l.Key != "key of "+s.holder:
		return fmt.Errorf("the key of %s is %q", l.Holder, l.Key)
	case s.busy:
		return fmt.Errorf("process 17 uses dataset %s: %w", l.ID, ErrInUse)
	}
	p.released = append(p.released, l.Holder)
	s.holder, s.ended = "", false
	return nil
}

// held returns the devices that have a holder.
func (p *pool) held() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(p.sets)) {
		if p.sets[id].holder != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

func (p *pool) set(change func(*pool)) { p.mu.Lock(); defer p.mu.Unlock(); change(p) }

func (p *pool) end(id string) { p.set(func(p *pool) { p.sets[id].ended = true }) }

func releasing(l *pool) *instance {
	return &instance{Instance: l, releaser: l, Options: Options{Period: time.Minute, Grace: 10 * time.Second}}
}

// startPool starts a plugin with tank-a, tank-b and tank-c, and makes a separate reservation for each id in reserved.
func startPool(t *testing.T, reserved ...string) (*pool, *Server, *log) {
	t.Helper()
	l := &pool{sets: map[string]*dataset{"tank-a": {}, "tank-b": {}, "tank-c": {}}}
	p, log := start(t, releasing(l))
	next(t, stream(t, p))
	for _, id := range reserved {
		reserveOne(t, p, id)
	}
	t.Cleanup(func() { must.Zero(t, l.overlaps, must.Sprint("overlapping calls for one device")) })
	return l, p, log
}

func reserveOne(t *testing.T, p *Server, id string) *device.ContainerReservation {
	t.Helper()
	r, err := p.Reserve([]string{id})
	must.NoError(t, err)
	return r
}

func wantHeld(t *testing.T, l *pool, want ...string) {
	t.Helper()
	synctest.Wait()
	must.Eq(t, want, l.held())
}

func TestReleaser_KeepsALeaseUntilReservedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t, "tank-a")
		time.Sleep(time.Hour) // the task may have ended by now, but nothing reports that
		wantHeld(t, l, "tank-a")
		must.SliceEmpty(t, l.released)
		r := reserveOne(t, p, "tank-a")
		must.Eq(t, "/tank/tank-a", r.Mounts[0].HostPath)
		must.Eq(t, []string{"reservation 1"}, l.released)
		wantHeld(t, l, "tank-a")
	})
}

func TestReleaser_ReleasesLeasesOfAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _ := startPool(t, "tank-a")
		again, _ := start(t, releasing(l))
		next(t, stream(t, again))
		_, err := again.Reserve([]string{"tank-a", "tank-b"})
		must.NoError(t, err)
		must.Eq(t, []string{"reservation 1"}, l.released)
		wantHeld(t, l, "tank-a", "tank-b")
	})
}

func TestReleaser_WaitsForAProcessThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t, "tank-a")
		l.set(func(l *pool) { l.sets["tank-a"].busy = true })
		time.AfterFunc(4*time.Second, func() { l.set(func(l *pool) { l.sets["tank-a"].busy = false }) })
		began := time.Now()
		reserveOne(t, p, "tank-a")
		must.Between(t, 4*time.Second, time.Since(began), 5*time.Second)
		must.Eq(t, []string{"reservation 1"}, l.released)
	})
}

func TestReleaser_RefusesADeviceThatStaysInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t, "tank-a")
		l.set(func(l *pool) { l.sets["tank-a"].busy = true })
		began := time.Now()
		_, err := p.Reserve([]string{"tank-a", "tank-b"})
		must.EqError(t, err, `failed to release device "tank-a", held by reservation 1: process 17 uses dataset tank-a: `+
			`the device is still in use (after a wait of 10s)`)
		must.Eq(t, 10*time.Second, time.Since(began))
		wantHeld(t, l, "tank-a")
		must.Eq(t, "reservation 1", l.sets["tank-a"].holder)
	})
}

func TestReleaser_DeviceInUseDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t, "tank-a", "tank-b", "tank-c")
		l.set(func(l *pool) {
			l.sets["tank-a"].slow = time.Hour // the release hangs until its context ends
			l.sets["tank-a"].ended, l.sets["tank-b"].ended = true, true
		})
		time.Sleep(time.Minute)
		wantHeld(t, l, "tank-a", "tank-c") // tank-b is released, although the release of tank-a hangs
		began := time.Now()
		reserveOne(t, p, "tank-b")
		reserveOne(t, p, "tank-c")
		must.Zero(t, time.Since(began))
		time.Sleep(time.Hour)
		wantHeld(t, l, "tank-a", "tank-b", "tank-c")
	})
}

func TestReleaser_SweepsEndedLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, log := startPool(t, "tank-a", "tank-b")
		l.set(func(l *pool) { l.sets["tank-a"].ended, l.sets["tank-a"].busy = true, true })
		time.Sleep(10 * time.Minute)
		wantHeld(t, l, "tank-a", "tank-b")
		must.Eq(t, 1, log.count("a lease has ended, but its device is still held: failed to release device \"tank-a\", "+
			"held by reservation 1"))
		l.set(func(l *pool) { l.sets["tank-a"].busy = false })
		time.Sleep(time.Minute)
		wantHeld(t, l, "tank-b")
		must.Eq(t, []string{"reservation 1"}, l.released)
	})
}

func TestReleaser_SweepsOnEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &pool{sets: map[string]*dataset{"tank-a": {}}}
		i := releasing(l)
		var kick func()
		i.events = events(func(ctx context.Context, k func()) error {
			kick = k
			<-ctx.Done()
			return nil
		})
		p, _ := start(t, i)
		next(t, stream(t, p))
		reserveOne(t, p, "tank-a")
		l.end("tank-a")
		wantHeld(t, l, "tank-a")
		kick()
		wantHeld(t, l)
	})
}

func TestReleaser_FailedReserveHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t)
		l.set(func(l *pool) { l.fail = errors.New("out of space") })
		_, err := p.Reserve([]string{"tank-a", "tank-b"})
		must.EqError(t, err, "out of space")
		wantHeld(t, l)

		l.set(func(l *pool) { l.fail, l.damaged = nil, errors.New("pool is suspended") })
		_, err = p.Reserve([]string{"tank-a"})
		must.EqError(t, err, "failed to list device leases: pool is suspended")
		wantHeld(t, l)
	})
}

func TestReleaser_WaitingReserveHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t)
		l.set(func(l *pool) { l.fail = fmt.Errorf("dataset is not ready: %w", ErrVanished) })
		done := make(chan error, 1)
		go func() { _, err := p.Reserve([]string{"tank-a", "tank-b"}); done <- err }()
		wantHeld(t, l)
		l.set(func(l *pool) { l.fail = nil })
		p.kick.Kick()
		must.NoError(t, <-done)
		wantHeld(t, l, "tank-a", "tank-b")
	})
}

// After a sweep has listed a lease, and before it releases the device, the device may be reserved again.
func TestReleaser_SweepSparesNewHolder(t *testing.T) {
	for name, slow := range map[string]func(*pool){
		"reserved during the look":    func(l *pool) { l.look = 5 * time.Second },
		"reserved during the release": func(l *pool) { l.sets["tank-a"].slow = 5 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, p, _ := startPool(t, "tank-a")
				l.end("tank-a")
				l.set(slow)
				time.Sleep(time.Minute + 2*time.Second) // now the second sweep is in progress
				var all sync.WaitGroup
				for _, id := range []string{"tank-a", "tank-b"} {
					all.Go(func() { reserveOne(t, p, id) })
				}
				all.Wait()
				wantHeld(t, l, "tank-a", "tank-b")
				time.Sleep(time.Hour)
				wantHeld(t, l, "tank-a", "tank-b")
				must.Eq(t, []string{"reservation 1"}, l.released)
			})
		})
	}
}

func TestReleaser_PanicInSweepIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, log := startPool(t, "tank-a")
		l.end("tank-a")
		l.set(func(l *pool) { l.panics = true })
		time.Sleep(9*time.Minute + 30*time.Second)
		must.Eq(t, 1, log.count("a lease has ended, but its device is still held: panic: no such set"))
		l.set(func(l *pool) { l.panics = false })
		reserveOne(t, p, "tank-b")
		wantHeld(t, l, "tank-a", "tank-b")
		time.Sleep(time.Minute)
		wantHeld(t, l, "tank-b")
	})
}

func TestMountsInEnvironment_SendsMountsOnlyAsVariables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := releasing(&pool{sets: map[string]*dataset{"tank-a": {}}})
		i.MountsInEnvironment = true
		p, _ := start(t, i)
		next(t, stream(t, p))
		r := reserveOne(t, p, "tank-a")
		must.SliceEmpty(t, r.Mounts)
		_, mounts, err := reservation.Recall(r.Envs)
		must.NoError(t, err)
		must.Len(t, 1, mounts)
		must.Eq(t, "/tank/tank-a", mounts[0].HostPath)
	})
}
