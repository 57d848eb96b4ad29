// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestCache_BuildsOnceForManyProcesses(t *testing.T) {
	c := testCache(t)
	var all []*peer
	for range 20 {
		all = append(all, startPeer(t, nil, "get", c.cfg.Dir))
	}
	for _, p := range all {
		p.says(t, "ready")
	}
	for _, p := range all {
		_, err := io.WriteString(p.in, "go\n")
		test.NoError(t, err)
	}
	built := 0
	for _, p := range all {
		line, err := p.out.ReadString('\n')
		test.NoError(t, err)
		if line == "hit false\n" {
			built++
		}
		p.in.Close()
		test.NoError(t, p.Wait())
	}
	test.Eq(t, 1, built, test.Sprintf("%d of them built", built))
	mustBeTidy(t, c, 1)
}

func TestCache_BuildsAfterAnotherBuilderIsKilled(t *testing.T) {
	c := testCache(t)
	other := startPeer(t, nil, "block", c.cfg.Dir)
	other.says(t, "building")
	mustTidy(t, c) // must not remove the environment that is being built
	builds, err := filepath.Glob(filepath.Join(c.cfg.Dir, "envs/*/bin/python3"))
	must.SliceLen(t, 1, builds)
	test.NoError(t, err)
	e := mustGet(t, c, Spec{Key: "k", Build: building(30), Waiting: func() {
		test.NoError(t, other.Process.Kill())
	}})
	defer e.Release()
	test.Error(t, other.Wait(), test.Sprint("it ended by itself"))
	test.False(t, e.Hit)
	mustTidy(t, c)
	mustBeTidy(t, c, 1)
}

// Two processes build, acquire, replace and remove environments all the time, until each is killed at a random moment.
func TestCache_SurvivesKillsAtAnyMoment(t *testing.T) {
	testsupport.Long(t, "repeats")

	c := testCache(t)
	for i := range 150 {
		var ended []func()
		for range 2 {
			other := startPeer(t, nil, "churn", c.cfg.Dir)
			other.says(t, "ready")
			ended = append(ended, func() {
				test.NoError(t, other.Process.Kill())
				if err := other.Wait(); err == nil || other.ProcessState.Exited() {
					t.Errorf("after %d times, a process ended by itself: %v", i, err)
				}
			})
		}
		for _, end := range ended {
			time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond) // a random time, to kill at any step
			end()
		}
		for _, key := range []string{"0", "1"} {
			e := mustGet(t, c, Spec{Key: key, Build: building(30)})
			must.NoError(t, checkTree(e.Dir, 30))
			e.Release()
		}
		states, err := filepath.Glob(filepath.Join(filepath.Dir(c.cfg.Dir), "task-*"))
		must.NoError(t, err)
		for _, state := range states {
			must.NoError(t, os.Remove(state))
		}
		mustTidy(t, c)
		mustBeTidy(t, c, 2)
		if t.Failed() {
			break
		}
	}
}

func TestCache_LimitsConcurrentBuilds(t *testing.T) {
	c := testCache(t)
	most := max(2, runtime.GOMAXPROCS(0))
	var now, built atomic.Int32
	var all sync.WaitGroup
	for n := range 3 * most {
		all.Go(func() {
			e, err := c.Get(t.Context(), Spec{Key: fmt.Sprint(n), Build: func(ctx context.Context, dir,
				scratch string) error {
				test.LessEq(t, int32(most), now.Add(1), test.Sprint("concurrent builds"))
				defer now.Add(-1)
				if built.Add(1) <= int32(most) { // the first builds wait for each other, to show that this many run concurrently
					testsupport.Eventually(t, "all places are taken", func() bool { return built.Load() >= int32(most) })
				}
				return building(3)(ctx, dir, scratch)
			}})
			test.NoError(t, err)
			e.Release()
		})
	}
	all.Wait()
	mustBeTidy(t, c, 3*most)
}
