// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport/harness"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint/memory"
)

// noOptions are those of a driver, and of its tasks.
type noOptions struct{}

// instance is a driver with an engine.
type instance struct{ engine driver.Engine }

func (i instance) Engine() driver.Engine { return i.engine }

func (instance) Command(context.Context, driver.Request[noOptions]) (*task.Command, error) {
	return nil, errors.New("the engine is not the local one")
}

// An agent starts a task, waits for its exit and destroys it, over the wire, again and again: each start
// runs its program.
func TestStart_RunsAgainWhatHasEnded(t *testing.T) {
	const rounds = 100
	dir, err := os.MkdirTemp("", "again") // Nomad's harness leaves directories behind; short, since sockets are in it
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, os.RemoveAll(dir)) })
	t.Setenv("TMPDIR", dir)
	for _, silent := range []bool{true, false} {
		for _, same := range []bool{true, false} {
			t.Run(fmt.Sprintf("silent=%t,same=%t", silent, same), func(t *testing.T) {
				w := &world{t: t, store: memory.New(testLease), nomad: &nomad{allocs: map[string]Alloc{}, silent: silent}}
				n := w.node("a")
				d := driver.New(t.Context(), hclog.NewNullLogger(), driver.Plugin[noOptions, noOptions]{
					Name: "test", Summary: "runs tasks in memory",
					New: func(noOptions, hclog.Logger) (driver.Instance[noOptions], error) { return instance{n.Engine}, nil },
				})
				agent := testutils.NewDriverHarness(t, d)
				t.Cleanup(func() { harness.Kill(agent) })
				must.NoError(t, agent.SetConfig(&base.Config{}))
				for i := range rounds {
					c := n.config("alloc-0")
					if !same {
						c = n.config(fmt.Sprint("alloc-", i))
					}
					w.nomad.set(c.AllocID, alive)
					runsAgain(t, w, agent, c)
					if !same {
						w.nomad.set(c.AllocID, Alloc{State: Ended, Told: true})
					}
					must.Len(t, i+1, w.store.Runs(), must.Sprintf("start %d", i))
					must.SliceEmpty(t, w.store.Records())
				}
			})
		}
	}
}

// runsAgain is one life of a task.
func runsAgain(t *testing.T, w *world, agent drivers.DriverPlugin, c *drivers.TaskConfig) {
	t.Helper()
	must.NoError(t, c.EncodeConcreteDriverConfig(noOptions{}))
	begun := time.Now()
	_, _, err := agent.StartTask(c)
	must.NoError(t, err)
	must.Less(t, testLease/2, time.Since(begun))
	w.store.Exit(w.record().Name, task.Exit{Code: 7})
	exited, err := agent.WaitTask(t.Context(), c.ID)
	must.NoError(t, err)
	test.Eq(t, 7, (<-exited).ExitCode)
	must.NoError(t, agent.DestroyTask(c.ID, true))
}
