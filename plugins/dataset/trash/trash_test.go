// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package trash

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// complaints are a keeper's current errors, by subject.
type complaints map[string]error

func (c *complaints) say(about, _ string, err error) {
	if *c == nil {
		*c = complaints{}
	}
	(*c)[about] = err
	if err == nil {
		delete(*c, about)
	}
}

func TestMain(m *testing.M) { zfsfusetest.Main(m) }

// A class that can't be listed does not block the trash of another.
func TestKeeper_DestroysExpiredDatasets(t *testing.T) {
	pool, ctx := zfsfusetest.New(t), t.Context()
	e := engine.Open(pool.Program, pool.Root)
	bad := engine.Open(pool.Program, "gone")
	var log complaints
	clock := time.Now()
	k := &Keeper{Say: log.say, now: func() time.Time { return clock },
		Engines: func() map[string]*engine.Engine {
			return map[string]*engine.Engine{"bad": bad, "fast": e}
		}}
	for name, d := range map[string]time.Duration{"a": 8 * time.Hour, "b": 0, "c": 6 * time.Hour} {
		name = "default/" + name
		_, err := e.Create(ctx, name, engine.Spec{Tags: engine.Tags{engine.Kind: "volume", engine.ID: filepath.Base(name)}})
		must.NoError(t, err)
		must.NoError(t, e.Discard(ctx, name, d))
	}
	_, err := e.Create(ctx, "default/d", engine.Spec{Tags: engine.Tags{engine.Kind: "volume", engine.ID: "d"}})
	must.NoError(t, err)
	for _, step := range []struct {
		after time.Duration
		want  []string
	}{
		{0, []string{".trash/a", ".trash/b", ".trash/c", "default/d"}},
		{7 * time.Hour, []string{".trash/a", ".trash/b", "default/d"}},
		{1000 * time.Hour, []string{".trash/b", "default/d"}},
	} {
		clock = clock.Add(step.after)
		k.Look(ctx)
		var names []string
		all, err := e.List(ctx)
		must.NoError(t, err)
		for _, d := range all {
			name, _, _ := strings.Cut(d.Name, ".20")
			names = append(names, name)
		}
		must.Eq(t, step.want, names)
	}
	must.ErrorContains(t, log["trash of bad"], "the pool gone is not imported")
	must.MapLen(t, 1, log)
}

// Only the time while a keeper runs counts, even if the node's clock leaps before it runs.
func TestKeeper_CountsOnlyTheTimeItRuns(t *testing.T) {
	pool, ctx := zfsfusetest.New(t), t.Context()
	e := engine.Open(pool.Program, pool.Root)
	_, err := e.Create(ctx, "default/a", engine.Spec{Tags: engine.Tags{engine.Kind: "volume", engine.ID: "a"}})
	must.NoError(t, err)
	must.NoError(t, e.Discard(ctx, "default/a", time.Hour))
	clock := time.Now()
	keeper := func() *Keeper {
		k := &Keeper{Say: new(complaints).say, now: func() time.Time { return clock },
			Engines: func() map[string]*engine.Engine {
				return map[string]*engine.Engine{"fast": e}
			}}
		k.Look(ctx)
		return k
	}
	pass := func(k *Keeper, after time.Duration, left ...time.Duration) {
		t.Helper()
		clock = clock.Add(after)
		k.Look(ctx)
		all, err := e.List(ctx)
		must.NoError(t, err)
		var have []time.Duration
		for _, d := range all {
			l, _, ends, err := d.Left()
			must.NoError(t, err)
			must.True(t, ends)
			have = append(have, l)
		}
		must.Eq(t, left, have)
	}
	clock = clock.AddDate(10, 0, 0)
	first := keeper()
	pass(first, 0, time.Hour)
	pass(first, 5*time.Minute, time.Hour) // shorter than save, so not yet in the tag
	pass(first, 25*time.Minute, 30*time.Minute)
	clock = clock.AddDate(-20, 0, 0)
	second := keeper()
	pass(second, 29*time.Minute, time.Minute)
	pass(second, time.Minute)
}

// A dataset that can't be destroyed now is destroyed later.
func TestKeeper_RetriesAFailedDestroy(t *testing.T) {
	pool, ctx := zfsfusetest.New(t), t.Context()
	e := engine.Open(pool.Program, pool.Root)
	_, err := e.Create(ctx, "default/a", engine.Spec{Tags: engine.Tags{engine.Kind: "volume", engine.ID: "a"}})
	must.NoError(t, err)
	must.NoError(t, e.Snapshot(ctx, "default/a", "s"))
	must.NoError(t, e.Discard(ctx, "default/a", time.Hour))
	all, err := e.List(ctx)
	must.NoError(t, err)
	must.SliceLen(t, 1, all)
	snapshot := pool.Root + "/" + all[0].Name + "@s"
	hold := func(command string) {
		out, err := exec.CommandContext(ctx, pool.Program, command, "mine", snapshot).CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
	}
	var log complaints
	clock := time.Now()
	k := &Keeper{Say: log.say, now: func() time.Time { return clock },
		Engines: func() map[string]*engine.Engine {
			return map[string]*engine.Engine{"fast": e}
		}}
	k.Look(ctx)
	hold("hold")
	clock = clock.Add(time.Hour)
	k.Look(ctx)
	must.ErrorIs(t, log["fast/"+all[0].Name], engine.ErrInUse)
	hold("release")
	k.Look(ctx)
	must.MapEmpty(t, log)
	all, err = e.List(ctx)
	must.NoError(t, err)
	must.SliceEmpty(t, all)
}

// An operator restores an expired volume after the keeper has listed it and before it is destroyed.
func TestKeeper_KeepsAVolumeRestoredAfterItWasListed(t *testing.T) {
	pool, ctx := zfsfusetest.New(t), t.Context()
	e := engine.Open(pool.Program, pool.Root)
	_, err := e.Create(ctx, "default/a", engine.Spec{Tags: engine.Tags{engine.Kind: "volume", engine.ID: "a"}})
	must.NoError(t, err)
	must.NoError(t, e.Discard(ctx, "default/a", time.Hour))
	all, err := e.List(ctx)
	must.NoError(t, err)
	must.SliceLen(t, 1, all)
	name := all[0].Name

	listed := filepath.Join(t.TempDir(), "listed")
	program := filepath.Join(filepath.Dir(listed), "zfs")
	script := fmt.Sprintf("#!/bin/sh\n%q \"$@\"; code=$?\n: >%q\nexit $code\n", pool.Program, listed)
	must.NoError(t, os.WriteFile(program, []byte(script), 0o755))
	clock := time.Now()
	k := &Keeper{Say: new(complaints).say, now: func() time.Time { return clock },
		Engines: func() map[string]*engine.Engine {
			return map[string]*engine.Engine{"fast": engine.Open(program, pool.Root)}
		}}
	k.Look(ctx)
	must.NoError(t, os.Remove(listed))
	clock = clock.Add(time.Hour)

	_, unlock, err := e.Lock(ctx, engine.TrashLock(name), time.Minute)
	must.NoError(t, err)
	over := make(chan struct{})
	go func() { defer close(over); k.Look(ctx) }()
	testsupport.Eventually(t, "the list", func() bool { return testsupport.Exists(listed) })
	must.NoError(t, e.Tag(ctx, name, engine.Tags{engine.Adopt: "key", engine.Kept: "", engine.Passed: ""}))
	unlock()
	<-over
	d, err := e.Get(ctx, name)
	must.NoError(t, err)
	must.True(t, d.Waits())
}

func TestKeeper_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	k := &Keeper{Say: new(complaints).say, Engines: func() map[string]*engine.Engine {
		cancel()
		return nil
	}}
	k.Run(ctx)
}
