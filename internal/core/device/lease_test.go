package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
)

// pool is a plugin whose devices are data sets: a task gets one mounted, alone,
// and who has it is written down in the data set itself, which outlives the plugin.
type pool struct {
	mu       sync.Mutex
	sets     map[string]*dataset
	fail     error // of Reserve
	damaged  error // of Leases and Release
	at       int   // calls at the moment
	released []string
	slow     time.Duration // what a release takes
	look     time.Duration // what a look at the leases takes after it has seen them
	overlap  atomic.Bool   // two calls at a time
}

type dataset struct {
	lease *Lease // a property of the data set
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

// alone tells of two calls of the Releaser at a time.
func (p *pool) alone() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at++; p.at > 1 {
		p.overlap.Store(true)
	}
	return func() { p.mu.Lock(); defer p.mu.Unlock(); p.at-- }
}

func (p *pool) Reserve(_ context.Context, ids []string) (*device.ContainerReservation, error) {
	defer p.alone()()
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &device.ContainerReservation{Envs: map[string]string{"DATASET": ids[0]}}
	for _, id := range ids {
		if p.sets[id].lease != nil {
			return nil, fmt.Errorf("dataset %s is held since %s", id, p.sets[id].lease.Since)
		}
		p.sets[id].lease = &Lease{ID: id, Since: time.Now()}
		r.Mounts = append(r.Mounts, &device.Mount{HostPath: "/tank/" + id, TaskPath: "/data"})
	}
	return r, p.fail
}

func (p *pool) Leases(context.Context) (all []Lease, err error) {
	defer p.alone()()
	p.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(p.sets)) {
		if l := p.sets[id].lease; l != nil {
			all = append(all, *l)
		}
	}
	look, err := p.look, p.damaged
	p.mu.Unlock()
	time.Sleep(look)
	return all, err
}

func (p *pool) Release(_ context.Context, id string) error {
	defer p.alone()()
	p.mu.Lock()
	slow := p.slow
	p.mu.Unlock()
	time.Sleep(slow)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = append(p.released, id)
	if p.damaged != nil {
		return p.damaged
	}
	p.sets[id].lease = nil
	return nil
}

func (p *pool) held() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(p.sets)) {
		if p.sets[id].lease != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

func (p *pool) set(change func(*pool)) { p.mu.Lock(); defer p.mu.Unlock(); change(p) }

func releasing(l *pool) *instance {
	return &instance{Instance: l, releaser: l, Options: Options{Period: time.Minute, Grace: time.Second}}
}

func startPool(t *testing.T) (*pool, *Server, *log) {
	t.Helper()
	l := &pool{sets: map[string]*dataset{"tank-a": {}, "tank-b": {}, "tank-c": {}}}
	p, log := start(t, releasing(l))
	next(t, stream(t, p))
	t.Cleanup(func() {
		if l.overlap.Load() {
			t.Error("two calls at a time")
		}
	})
	return l, p, log
}

func wantHeld(t *testing.T, l *pool, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := l.held(); !slices.Equal(got, want) {
		t.Errorf("held are %v, want %v", got, want)
	}
}

func TestALeaseLastsUntilItsDeviceIsReservedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t)
		if _, err := p.Reserve([]string{"tank-a"}); err != nil {
			t.Fatal(err)
		}
		since := l.sets["tank-a"].lease.Since
		time.Sleep(time.Hour) // its task may have ended; nobody says so
		wantHeld(t, l, "tank-a")
		r, err := p.Reserve([]string{"tank-a"})
		if err != nil || r.Mounts[0].HostPath != "/tank/tank-a" {
			t.Fatalf("got %+v, %v", r, err)
		}
		if l.sets["tank-a"].lease.Since.Equal(since) {
			t.Error("the old lease stands")
		}
	})
}

func TestALeaseIsFoundByTheNextProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t)
		if _, err := p.Reserve([]string{"tank-a"}); err != nil {
			t.Fatal(err)
		}
		again, _ := start(t, releasing(l))
		next(t, stream(t, again))
		if _, err := again.Reserve([]string{"tank-a", "tank-b"}); err != nil {
			t.Error(err)
		}
		wantHeld(t, l, "tank-a", "tank-b")
	})
}

func TestALeaseThatWasLeftIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, log := startPool(t)
		for _, id := range []string{"tank-a", "tank-b"} {
			if _, err := p.Reserve([]string{id}); err != nil {
				t.Fatal(err)
			}
		}
		l.set(func(l *pool) { l.sets["tank-a"].lease.Left = true; l.damaged = errors.New("pool is suspended") })
		time.Sleep(10 * time.Minute)
		wantHeld(t, l, "tank-a", "tank-b")
		if n := log.count("failed to release what has been left: pool is suspended"); n != 1 {
			t.Errorf("%d lines in\n%s", n, log)
		}
		l.set(func(l *pool) { l.damaged = nil })
		time.Sleep(time.Minute)
		wantHeld(t, l, "tank-b")
	})
}

func TestAReservationThatFailsHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t)
		l.set(func(l *pool) { l.fail = errors.New("out of space") })
		_, err := p.Reserve([]string{"tank-a", "tank-b"})
		wantError(t, err, "out of space")
		wantHeld(t, l)

		l.set(func(l *pool) { l.fail, l.damaged = nil, errors.New("pool is suspended") })
		_, err = p.Reserve([]string{"tank-a"})
		wantError(t, err, `failed to take back what is reserved anew: failed to release "tank-a": pool is suspended`)
		wantHeld(t, l)
	})
}

func TestAReservationThatWaitsHoldsNothingMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t)
		l.set(func(l *pool) { l.fail = fmt.Errorf("dataset is not ready: %w", ErrVanished) })
		done := make(chan error, 1)
		go func() { _, err := p.Reserve([]string{"tank-a", "tank-b"}); done <- err }()
		wantHeld(t, l)
		l.set(func(l *pool) { l.fail = nil })
		p.kick.Kick() // what is found is what was listed, and is asked for once more
		synctest.Wait()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("it waits though there is a newer list")
		}
		wantHeld(t, l, "tank-a", "tank-b")
	})
}

// What a sweep has seen as left must not be given away while it is released.
func TestASweepNeverTakesWhatHasJustBeenGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t)
		if _, err := p.Reserve([]string{"tank-a"}); err != nil {
			t.Fatal(err)
		}
		l.set(func(l *pool) { l.sets["tank-a"].lease.Left = true; l.slow = 5 * time.Second })
		time.Sleep(time.Minute - 4*time.Second) // into the release, or about to begin it
		var all sync.WaitGroup
		for _, id := range []string{"tank-a", "tank-b"} {
			all.Go(func() {
				if _, err := p.Reserve([]string{id}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		time.Sleep(time.Hour)
		wantHeld(t, l, "tank-a", "tank-b")
	})
}

// What a sweep is looking at must not be given away before it is released.
func TestADeviceGivenDuringASweepsLookIsNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t)
		if _, err := p.Reserve([]string{"tank-a"}); err != nil {
			t.Fatal(err)
		}
		l.set(func(l *pool) { l.sets["tank-a"].lease.Left = true; l.look = 5 * time.Second })
		time.Sleep(time.Minute + 2*time.Second) // amid the look
		if _, err := p.Reserve([]string{"tank-a"}); err != nil {
			t.Fatal(err)
		}
		l.set(func(l *pool) { l.look = 0 })
		wantHeld(t, l, "tank-a")
		time.Sleep(time.Hour)
		wantHeld(t, l, "tank-a")
	})
}

func TestALeaseThatIsNotLeftIsNeverReleasedByASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, _ := startPool(t)
		if _, err := p.Reserve([]string{"tank-a"}); err != nil {
			t.Fatal(err)
		}
		l.set(func(l *pool) {
			l.sets["tank-b"].lease = &Lease{ID: "tank-b"} // of a time that is not known
			l.sets["tank-a"].lease.Left = true
			l.released = nil
		})
		time.Sleep(time.Hour)
		wantHeld(t, l, "tank-b")
		if !slices.Equal(l.released, []string{"tank-a"}) {
			t.Errorf("released are %v", l.released)
		}
	})
}

func TestAPanicInASweepIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, log := startPool(t)
		if _, err := p.Reserve([]string{"tank-a"}); err != nil {
			t.Fatal(err)
		}
		l.set(func(l *pool) { l.sets["tank-a"].lease.Left = true; l.sets["tank-a"].lease.ID = "tank-z" })
		time.Sleep(10 * time.Minute)
		if log.count("failed to release what has been left: panic:") != 1 {
			t.Errorf("got\n%s", log)
		}
		if _, err := p.Reserve([]string{"tank-b"}); err != nil {
			t.Errorf("nothing can be reserved any more: %v", err)
		}
	})
}
