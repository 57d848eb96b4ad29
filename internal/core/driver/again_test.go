// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// onceTask appends a line to a file when it starts, and exits with code 7 after its method end is called.
type onceTask struct {
	a      *agent
	lines  string
	script string
	cfg    *drivers.TaskConfig
}

func (a *agent) onceTask(change ...func(*drivers.TaskConfig)) *onceTask {
	lines := filepath.Join(a.state, "lines"+testsupport.Mark())
	must.NoError(a.t, os.Chmod(a.state, 0o755))
	must.NoError(a.t, os.WriteFile(lines, nil, 0o666))
	must.NoError(a.t, os.Chmod(lines, 0o666))
	script := "echo x >> " + lines + "; echo first; echo first >&2; while [ ! -e " + lines +
		".go ]; do sleep 0.01; done; echo last; exit 7"
	return &onceTask{a: a, lines: lines, script: script, cfg: a.shell(script, "", change...)}
}

// again returns the task as the next agent starts it: with a new id and a new token.
func (o *onceTask) again(more string, change ...func(*drivers.TaskConfig)) *drivers.TaskConfig {
	return o.a.shell(o.script, more, append([]func(*drivers.TaskConfig){func(c *drivers.TaskConfig) {
		c.AllocID, c.AllocDir = o.cfg.AllocID, o.cfg.AllocDir
		c.ID = c.AllocID + "/web/" + uuid.Short()
		c.StdoutPath, c.StderrPath = o.cfg.StdoutPath+".new", o.cfg.StderrPath+".new"
		c.Env["NOMAD_TOKEN"] = c.ID
	}}, change...)...)
}

func (o *onceTask) begun() int {
	b, _ := os.ReadFile(o.lines)
	return strings.Count(string(b), "x")
}

func (o *onceTask) running() {
	testsupport.Eventually(o.a.t, "it runs", func() bool { return strings.Contains(o.a.output(o.cfg), "first") })
}

func (o *onceTask) end() { must.NoError(o.a.t, os.WriteFile(o.lines+".go", nil, 0o600)) }

// known returns the ids of the driver's tasks.
func (a *agent) known() (ids []string) {
	a.driver.mu.Lock()
	defer a.driver.mu.Unlock()
	for id := range a.driver.handles {
		ids = append(ids, id)
	}
	return ids
}

func TestStartTask_ReturnsARunThatNoAgentHasRecorded(t *testing.T) {
	for _, ended := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("ended: %v, plugin restarted: %v", ended, restart), func(t *testing.T) {
				var mu sync.Mutex
				said := map[string]Ended{}
				w := testInstance{}
				w.ended = func(e Ended) string {
					mu.Lock()
					defer mu.Unlock()
					said[e.ID] = e
					return "explained"
				}
				a := startInstance(t, w, nil)
				o := a.onceTask()
				a.run(o.cfg)
				o.running()
				pid := a.pid(o.cfg.ID)
				if ended {
					o.end()
					testsupport.Eventually(t, "it has ended", func() bool { return strings.Contains(a.output(o.cfg), "last") })
				}
				if restart {
					a.restart()
				}
				next := o.again("")
				a.run(next)
				got := a.pid(next.ID)
				test.Eq(t, pid, got, test.Sprintf("the process is now %d", got))
				known := a.known()
				must.SliceLen(t, 1, known, must.Sprint("tasks of the driver"))
				test.Eq(t, next.ID, known[0], test.Sprint("tasks of the driver"))
				o.end()
				r := a.wait(next.ID)
				must.Eq(t, 7, r.ExitCode, must.Sprintf("got %+v", r))
				test.NoError(t, r.Err, test.Sprintf("got %+v", r))
				n := o.begun()
				test.Eq(t, 1, n, test.Sprintf("it was started %d times", n))
				test.Eq(t, "first\nlast\n", a.output(o.cfg), test.Sprint("output"))
				mu.Lock()
				if e := said[next.ID]; e.Exit == nil || e.StderrFrom != (task.LogPlace{}) {
					t.Errorf("its exit is explained by %+v", e)
				}
				mu.Unlock()
				a.destroy(next.ID)
			})
		}
	}
}

func TestStartTask_StartsANewRunWhenNomadRestartsTheTask(t *testing.T) {
	config := func(more string) func(*onceTask) *drivers.TaskConfig {
		return func(o *onceTask) *drivers.TaskConfig { return o.again(more) }
	}
	with := func(change func(*drivers.TaskConfig)) func(*onceTask) *drivers.TaskConfig {
		return func(o *onceTask) *drivers.TaskConfig { return o.again("", change) }
	}
	same := config("")
	for name, c := range map[string]struct {
		before func(t *testing.T, a *agent, th *drivers.TaskHandle)
		next   func(*onceTask) *drivers.TaskConfig
	}{
		"Nomad waited for the earlier run": {func(t *testing.T, a *agent, th *drivers.TaskHandle) {
			_, err := a.driver.WaitTask(t.Context(), th.Config.ID)
			must.NoError(t, err)
		}, same},
		"Nomad waited for the earlier run before a plugin restart": {func(t *testing.T, a *agent, th *drivers.TaskHandle) {
			_, err := a.driver.WaitTask(t.Context(), th.Config.ID)
			must.NoError(t, err)
			a.restart()
		}, same},
		"the earlier run was recovered": {func(t *testing.T, a *agent,
			th *drivers.TaskHandle) {
			must.NoError(t, a.RecoverTask(th))
		}, same},
		"the earlier run was recovered by another plugin": {func(t *testing.T, a *agent,
			th *drivers.TaskHandle) {
			a.restart()
			must.NoError(t, a.RecoverTask(th))
		}, same},
		"the earlier run was stopped": {func(t *testing.T, a *agent,
			th *drivers.TaskHandle) {
			must.NoError(t, a.StopTask(th.Config.ID, 0, ""))
		}, same},
		"the configuration changed": {nil, config(`kill_mode = "all"`)},
		"a limit changed": {nil, with(func(c *drivers.TaskConfig) {
			c.Resources.NomadResources.Memory.MemoryMB = 64
		})},
		"the user changed": {nil, with(func(c *drivers.TaskConfig) {
			if os.Geteuid() == 0 {
				c.User = "nobody"
			} else { // only root can run tasks as other users
				c.Resources.NomadResources.Memory.MemoryMB = 64
			}
		})},
		"the output is now discarded": {nil, with(func(c *drivers.TaskConfig) {
			c.StdoutPath, c.StderrPath = os.DevNull,
				os.DevNull
		})},
	} {
		t.Run(name, func(t *testing.T) {
			a := start(t, nil)
			o := a.onceTask()
			th := wire(t, a.run(o.cfg))
			o.running()
			pid := a.pid(o.cfg.ID)
			if c.before != nil {
				c.before(t, a, th)
			}
			next := c.next(o)
			a.run(next)
			test.NotEq(t, pid, a.pid(next.ID), test.Sprint("the process of the previous run is still used"))
			o.end()
			r := a.wait(next.ID)
			must.Eq(t, 7, r.ExitCode, must.Sprintf("got %+v", r))
			test.NoError(t, r.Err, test.Sprintf("got %+v", r))
			n := o.begun()
			test.Eq(t, 2, n, test.Sprintf("it was started %d times", n))
			known := a.known()
			must.SliceLen(t, 1, known, must.Sprint("tasks of the driver"))
			test.Eq(t, next.ID, known[0], test.Sprint("tasks of the driver"))
			a.destroy(next.ID)
		})
	}
}

func TestRequestOf_CoversLogmonFIFOs(t *testing.T) {
	for _, same := range []bool{false, true} {
		cfg := &drivers.TaskConfig{StdoutPath: "/alloc/out", StderrPath: "/alloc/err"}
		request := func() string {
			out, err := outputOf(cfg, nil, task.CollectorNomad)
			must.NoError(t, err)
			r, err := requestOf(nil, task.State{Output: out})
			must.NoError(t, err)
			return r
		}
		before := request()
		if !same {
			cfg.StderrPath = "/alloc/elsewhere"
		}
		test.Eq(t, same, request() == before, test.Sprintf("the same FIFOs: %v, the same request", same))
	}
}

func TestRequestOf_IgnoresMapOrder(t *testing.T) {
	config := func() any { // contains a pointer whose address differs each time
		c := testTask{Command: "x", TaskOptions: defaultTaskOptions()}
		c.Ulimit = map[string]string{}
		for i := range 20 {
			c.Ulimit[fmt.Sprint(i)] = "1"
		}
		c.Logs = &LogOptions{MaxFiles: 1}
		return c
	}
	first, err := requestOf(config(), task.State{ID: "a"})
	must.NoError(t, err)
	for range 20 {
		got, err := requestOf(config(), task.State{ID: "b", Command: task.Command{Env: []string{"A=b"}}})
		must.Eq(t, first, got, must.Sprintf("got %s, %v", got, err))
	}
}

// slowDestroy is an engine whose Destroy waits until goOn is closed.
type slowDestroy struct {
	Engine
	began, goOn chan struct{}
}

func (e slowDestroy) Destroy(ctx context.Context, id string) error {
	select {
	case <-e.began:
	default:
		close(e.began)
	}
	<-e.goOn
	return e.Engine.Destroy(ctx, id)
}

func TestRecoverTask_KeepsTheExitOfADestroyedTask(t *testing.T) {
	for _, under := range []string{"before DestroyTask", "during DestroyTask", "after DestroyTask"} {
		t.Run(under, func(t *testing.T) {
			a := start(t, nil)
			cfg := a.shell("exit 7", "")
			th := wire(t, a.run(cfg))
			r := a.wait(cfg.ID)
			must.Eq(t, 7, r.ExitCode, must.Sprintf("got %+v", r))
			h, err := a.driver.handle(cfg.ID)
			must.NoError(t, err)
			slow := slowDestroy{h.engine, make(chan struct{}), make(chan struct{})}
			h.engine = slow
			over := make(chan error, 1)
			recovered := make(chan error, 1)
			destroy := func() { over <- a.driver.DestroyTask(cfg.ID, true) } // the agent is killed before it gets this result
			recover := func() { recovered <- a.driver.RecoverTask(th) }
			switch under {
			case "before DestroyTask":
				recover()
				go destroy()
				close(slow.goOn)
			case "during DestroyTask":
				go destroy()
				<-slow.began
				go recover()
				select {
				case err := <-recovered:
					t.Fatalf("RecoverTask did not wait: %v", err)
				default:
				}
				close(slow.goOn)
			default:
				close(slow.goOn)
				destroy()
				recover()
			}
			must.NoError(t, await(t, "DestroyTask", over))
			must.NoError(t, await(t, "RecoverTask", recovered))
			if under == "before DestroyTask" { // the agent that recovered the task has destroyed it
				_, err := a.driver.WaitTask(t.Context(), cfg.ID)
				test.ErrorIs(t, err, drivers.ErrTaskNotFound)
				return
			}
			r = a.wait(cfg.ID)
			must.Eq(t, 7, r.ExitCode, must.Sprintf("got %+v", r))
			test.NoError(t, r.Err, test.Sprintf("got %+v", r))
			s, err := a.InspectTask(cfg.ID)
			must.NoError(t, err, must.Sprintf("it is %+v", s))
			must.Eq(t, drivers.TaskStateExited, s.State, must.Sprintf("it is %+v", s))
			test.Eq(t, 7, s.ExitResult.ExitCode, test.Sprintf("it is %+v", s))
			must.NoError(t, a.StopTask(cfg.ID, 0, ""))
			a.destroy(cfg.ID)
			test.SliceEmpty(t, a.known(), test.Sprint("tasks of the driver"))
		})
	}
}

func TestOnlyStart_WaitsForTheEarlierStartOfTheSameTask(t *testing.T) {
	d := &local{starts: map[string]chan struct{}{}}
	over, err := d.onlyStart(t.Context(), "run")
	must.NoError(t, err)
	_, err = d.onlyStart(t.Context(), "another")
	test.NoError(t, err, test.Sprint("another task's start"))
	gone, kill := context.WithCancel(t.Context())
	told := make(chan error, 1)
	go func() {
		_, err := d.onlyStart(gone, "run")
		told <- err
	}()
	kill()
	test.ErrorIs(t, await(t, "its answer", told), context.Canceled, test.Sprint("while it waits"))
	next := make(chan error, 1)
	go func() {
		_, err := d.onlyStart(t.Context(), "run")
		next <- err
	}()
	select {
	case err := <-next:
		t.Errorf("the next start did not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	over()
	must.NoError(t, await(t, "the next start", next))
	_, err = d.onlyStart(gone, "free")
	test.ErrorIs(t, err, context.Canceled, test.Sprint("a start for an agent that is gone"))
}

// A StopTask call that arrives during DestroyTask starts no supervisor.
func TestStopTask_StartsNoSupervisorForADestroyedTask(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("exit 7", "")
	a.run(cfg)
	a.wait(cfg.ID)
	h, err := a.driver.handle(cfg.ID)
	must.NoError(t, err)
	a.destroy(cfg.ID)
	store := filepath.Join(a.state, "test-driver", a.node)
	for _, pid := range supervisors(store) {
		must.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	testsupport.Eventually(t, "the supervisor is gone", func() bool { return len(supervisors(store)) == 0 })
	must.NoError(t, h.task.Stop(t.Context(), time.Second, ""))
	test.SliceEmpty(t, supervisors(store))
}
