// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestTidy_RemovesTheLeastRecentlyUsedFirst(t *testing.T) {
	c := testCache(t)
	var all []*Environment
	for i := range 4 {
		e := mustGet(t, c, Spec{Key: fmt.Sprint(i), Build: building(30)})
		e.Release()
		all = append(all, e)
	}
	for i, age := range []time.Duration{time.Hour, 3 * time.Hour, -time.Hour, 2 * time.Hour} {
		used := time.Now().Add(-age)
		must.NoError(t, os.Chtimes(recordOf(all[i]), used, used))
	}
	for _, step := range []struct {
		size int64 // MaxSize, in units of one environment's size
		age  time.Duration
		want string
	}{
		{0, 0, "0123"},
		{4, 0, "0123"},
		{3, 0, "023"},
		{3, 90 * time.Minute, "02"},
		{1, 0, "2"},
	} {
		c.cfg.MaxAge, c.cfg.MaxSize = step.age, step.size*all[0].Size
		mustTidy(t, c)
		got := ""
		for i, e := range all {
			if _, err := os.Stat(e.Dir); err == nil {
				got += fmt.Sprint(i)
			}
		}
		test.Eq(t, step.want, got,
			test.Sprintf("%d environments, %v: %s stay instead of", step.size, step.age, got))
	}
	mustBeTidy(t, c, 1)
}

func TestTidy_CountsAnEnvironmentsAgeFromTheEndOfItsTask(t *testing.T) {
	c := testCache(t)
	c.cfg.MaxAge = time.Hour
	e := mustGet(t, c, Spec{Key: "k", Build: building(3)})
	state := filepath.Join(testDir(t), "task")
	must.NoError(t, os.Mkdir(state, 0o700))
	must.NoError(t, e.Acquire(state))
	e.Release()
	long := time.Now().Add(-48 * time.Hour)
	record := recordOf(e)
	must.NoError(t, os.Chtimes(record, long, long))
	mustTidy(t, c)
	must.NoError(t, os.Remove(state))
	mustTidy(t, c) // records that the task used it until now
	mustBeTidy(t, c, 1)
	names, err := e.store.names("users/" + e.id)
	must.NoError(t, err, must.Sprint("users has"))
	test.SliceEmpty(t, names, test.Sprint("users has"))
	must.NoError(t, os.Chtimes(recordOf(e), long, long))
	mustTidy(t, c)
	mustBeTidy(t, c, 0)
}

func recordOf(e *Environment) string {
	entries, err := e.store.entries()
	fatal(err)
	return e.store.entryPath(entries[e.id].key)
}

func TestTidy_RemovesLeftovers(t *testing.T) {
	c := testCache(t)
	e := mustGet(t, c, Spec{Key: "k", Build: building(3)})
	e.Release()
	s := e.store
	for _, dir := range []string{"builds/something/made", "envs/leftover/lib", "envs/other", "users/ended"} {
		must.NoError(t, os.MkdirAll(s.path(dir), 0o755))
	}
	for _, file := range []string{"meta/empty.json", "builds/something.json", "builds/something/file"} {
		must.NoError(t, os.WriteFile(s.path(file), nil, 0o600))
	}
	must.NoError(t, os.Symlink("/no/such/task", s.path("users/ended/link")))
	must.NoError(t, os.Chmod(s.path("builds/something"), 0o500))
	mustTidy(t, c)
	mustBeTidy(t, c, 1)
	again := mustGet(t, c, Spec{Key: "k"})
	again.Release()
}

func TestTidy_NeverRemovesAnEnvironmentInUse(t *testing.T) {
	c := testCache(t)
	c.cfg.MaxSize, c.cfg.Log = 1, nil
	c = Open(c.cfg)
	other := Open(c.cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var evictors, tasks sync.WaitGroup
	for _, cache := range []*Cache{c, other} {
		evictors.Go(func() {
			for ctx.Err() == nil {
				if err := cache.Tidy(ctx); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	states := testDir(t)
	times := 60
	if testing.Short() {
		times = 15
	}
	for n := range 4 {
		tasks.Go(func() {
			for i := range times {
				e, err := []*Cache{c, other}[n%2].Get(t.Context(), Spec{Key: fmt.Sprint(i % 2), Build: building(30)})
				if err != nil {
					t.Error(err)
					return
				}
				state := filepath.Join(states, fmt.Sprintf("%d-%d", n, i))
				err = errors.Join(os.Mkdir(state, 0o700), checkTree(e.Dir, 30), e.Acquire(state))
				e.Release()
				for range 5 {
					err = errors.Join(err, checkTree(e.Dir, 30))
				}
				if err = errors.Join(err, os.Remove(state)); err != nil {
					t.Errorf("task %d of %d: %v", i, n, err)
					return
				}
			}
		})
	}
	tasks.Wait()
	cancel()
	evictors.Wait()
	mustTidy(t, c)
	mustBeTidy(t, c, 0)
}
