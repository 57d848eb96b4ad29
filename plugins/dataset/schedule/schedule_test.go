// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schedule

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/simulate/simulatetest"
)

// world is a pool with a volume, and a clock.
type world struct {
	*Keeper
	t      *testing.T
	engine *engine.Engine
	path   string
	clock  time.Time
	log    bytes.Buffer
}

const volume = "default/0b7c3b8e-7d7c-4a43-9d1f-f3a2a3d4c5e6"

func newWorld(t *testing.T, schedule string, limits engine.Limits) *world {
	pool := simulatetest.New(t, "btrfs")
	e, err := engine.Open(pool.Backend, pool.Program, pool.Root)
	must.NoError(t, err)
	w := &world{t: t, engine: e, clock: time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 7)}
	w.path, err = e.Create(t.Context(), volume, engine.Spec{Limits: limits, Tags: engine.Tags{
		engine.Kind: "volume", engine.ID: filepath.Base(volume), engine.Volume: "data", engine.Namespace: "default",
		engine.Schedule: schedule,
	}})
	must.NoError(t, err)
	engines := map[string]*engine.Engine{"fast": e}
	w.Keeper = &Keeper{Engines: func(context.Context) (map[string]*engine.Engine, error) { return engines, nil },
		Logger: hclog.New(&hclog.LoggerOptions{Output: &w.log})}
	w.start()
	w.now = func() time.Time { return w.clock }
	return w
}

// at looks when so much time has passed.
func (w *world) after(d time.Duration) {
	w.clock = w.clock.Add(d)
	w.Look(w.t.Context())
}

func (w *world) snapshots() (names []string) {
	all, err := w.engine.Snapshots(w.t.Context(), volume)
	must.NoError(w.t, err)
	for _, s := range all {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}

// count is how many there are of each rule.
func (w *world) count(prefix string) (n int) {
	for _, name := range w.snapshots() {
		if strings.HasPrefix(name, prefix+"-") {
			n++
		}
	}
	return n
}

func TestKeeper_KeepsTheSchedule(t *testing.T) {
	w := newWorld(t, "hourly=3,daily=2", engine.Limits{Data: 64 << 20})
	must.NoError(t, w.engine.Snapshot(t.Context(), volume, "mine"))
	for range 10 {
		w.after(30 * time.Minute)
	}
	must.EqOp(t, 3, w.count("hourly"))
	must.EqOp(t, 1, w.count("daily"))
	before := w.snapshots()
	w.start() // another process
	w.after(0)
	must.Eq(t, before, w.snapshots())

	w.after(49 * time.Hour) // it was down
	must.EqOp(t, 3, w.count("hourly"))
	must.EqOp(t, 2, w.count("daily"))
	must.SliceContains(t, w.snapshots(), "mine")
	must.SliceLen(t, 6, w.snapshots())
	must.SliceContains(t, w.snapshots(), "hourly-"+w.clock.Format(stamp))

	// one with a clone stays, which is said once
	oldest := slices.DeleteFunc(w.snapshots(), func(n string) bool { return !strings.HasPrefix(n, "hourly") })[0]
	w.Keeper.Engines = func(context.Context) (map[string]*engine.Engine, error) {
		return map[string]*engine.Engine{"fast": {Backend: cloned{w.engine.Backend, oldest}, Locks: w.engine.Locks}}, nil
	}
	w.after(time.Hour)
	w.after(time.Hour)
	must.SliceContains(t, w.snapshots(), oldest)
	must.EqOp(t, 1, strings.Count(w.log.String(), "clones depend on it"), must.Sprint(w.log.String()))
	must.EqOp(t, 4, w.count("hourly"))
}

func TestKeeper_ForgetsVolumesThatAreGone(t *testing.T) {
	w := newWorld(t, "hourly=3", engine.Limits{Data: 64 << 20})
	w.after(0)
	must.MapLen(t, 1, w.looked)
	must.NoError(t, w.engine.Destroy(t.Context(), volume))
	w.after(2 * time.Hour)
	must.MapEmpty(t, w.looked)
}

// cloned is a file system on which a snapshot has clones.
type cloned struct {
	engine.Backend
	snapshot string
}

func (c cloned) DestroySnapshot(ctx context.Context, name, snapshot string) error {
	if snapshot == c.snapshot {
		return engine.ErrHasClones
	}
	return c.Backend.DestroySnapshot(ctx, name, snapshot)
}

// broken is a file system that fails.
type broken struct {
	engine.Backend
	space engine.Space
	list  error
}

func (b broken) List(ctx context.Context) ([]engine.Dataset, error) {
	if b.list != nil {
		return nil, b.list
	}
	return b.Backend.List(ctx)
}

func (b broken) Space(context.Context) (engine.Space, error) { return b.space, nil }

func TestKeeper_OneProblemDoesNotStopTheRest(t *testing.T) {
	w := newWorld(t, "hourly=3", engine.Limits{Data: 64 << 20})
	bad := &engine.Engine{Backend: broken{Backend: w.engine.Backend, list: errors.New("the pool is gone")}}
	w.Engines = func(context.Context) (map[string]*engine.Engine, error) {
		return map[string]*engine.Engine{"bad": bad, "fast": w.engine}, nil
	}
	w.after(time.Hour)
	w.after(time.Hour)
	must.EqOp(t, 2, w.count("hourly"))
	must.EqOp(t, 1, strings.Count(w.log.String(), "the pool is gone"))
}

func TestKeeper_MakesNoneOnAFullFileSystem(t *testing.T) {
	w := newWorld(t, "hourly=3", engine.Limits{Data: 64 << 20})
	full := &engine.Engine{Backend: broken{Backend: w.engine.Backend, space: engine.Space{Size: 1000, Free: 19}},
		Locks: w.engine.Locks}
	now := full
	w.Engines = func(context.Context) (map[string]*engine.Engine, error) {
		return map[string]*engine.Engine{"fast": now}, nil
	}
	w.after(time.Hour)
	w.after(time.Hour)
	must.SliceEmpty(t, w.snapshots())
	must.EqOp(t, 1, strings.Count(w.log.String(), "no space is left"), must.Sprint(w.log.String()))
	now = w.engine
	w.after(time.Minute)
	must.SliceLen(t, 1, w.snapshots())
	must.StrContains(t, w.log.String(), "this is over")
}

func TestKeeper_LeavesTheReserveToTheTask(t *testing.T) {
	w := newWorld(t, "hourly=9", engine.Limits{Data: 64 << 20, Snapshots: 30 << 20})
	file := filepath.Join(w.path, "a")
	for i := range 5 {
		must.NoError(t, os.WriteFile(file, bytes.Repeat([]byte{byte(i), 1, 2, 3}, 5<<18), 0o600)) // 5 MiB
		w.after(time.Hour)
	}
	must.EqOp(t, 5, w.count("hourly"))
	for i := range 6 {
		must.NoError(t, os.WriteFile(file, bytes.Repeat([]byte{byte(i), 4, 5, 6}, 5<<18), 0o600))
		w.after(time.Hour)
	}
	must.Less(t, 8, w.count("hourly"))
	must.StrContains(t, w.log.String(), "a snapshot was removed before its time")
}

func TestKeeper_EndsWhatTheTrashKeeps(t *testing.T) {
	w := newWorld(t, "", engine.Limits{Data: 64 << 20})
	ctx := t.Context()
	keep := func(name string, d time.Duration) {
		_, err := w.engine.Create(ctx, name, engine.Spec{Tags: engine.Tags{engine.Kind: "volume",
			engine.ID: filepath.Base(name)}})
		must.NoError(t, err)
		must.NoError(t, w.engine.Discard(ctx, name, d))
	}
	keep("default/a", 8*24*time.Hour)
	keep("default/b", 0)
	keep("default/c", 6*24*time.Hour)
	for _, name := range []string{"left", "made"} {
		_, err := w.engine.Create(ctx, engine.NewName(name), engine.Spec{Tags: engine.Tags{engine.Kind: "volume"}})
		must.NoError(t, err)
	}
	unlock, err := w.engine.Lock(ctx, "made")
	must.NoError(t, err)
	defer unlock()
	w.after(0)
	var names []string
	all, err := w.engine.List(ctx)
	must.NoError(t, err)
	for _, d := range all {
		name, _, _ := strings.Cut(d.Name, ".20")
		names = append(names, name)
	}
	must.Eq(t, []string{".new/made", ".trash/a", ".trash/b", volume}, names)
}

func TestKeeper_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	k := &Keeper{Logger: hclog.NewNullLogger(), Engines: func(context.Context) (map[string]*engine.Engine, error) {
		cancel()
		return nil, ctx.Err()
	}}
	k.Run(ctx)
}

// What ZFS is receiving has a name of its own until it is whole, and the lock is that of the volume.
func TestKeeper_LeavesWhatIsBeingReceived(t *testing.T) {
	w := newWorld(t, "", engine.Limits{Data: 64 << 20})
	id := "1c7c3b8e-7d7c-4a43-9d1f-f3a2a3d4c5e6"
	part := engine.NewName(id + ".part")
	_, err := w.engine.Create(t.Context(), part, engine.Spec{Limits: engine.Limits{Data: 64 << 20}})
	must.NoError(t, err)
	unlock, err := w.engine.Lock(t.Context(), id)
	must.NoError(t, err)
	w.after(time.Minute)
	_, err = w.engine.Get(t.Context(), part)
	unlock()
	must.NoError(t, err)
	w.after(time.Minute) // of one that was killed
	_, err = w.engine.Get(t.Context(), part)
	must.ErrorIs(t, err, engine.ErrNotFound)
}
