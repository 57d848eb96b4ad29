package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// onceTask leaves a line in a file when it begins, and ends with code 7 when told to.
type onceTask struct {
	a      *agent
	lines  string
	script string
	cfg    *drivers.TaskConfig
}

func (a *agent) onceTask(change ...func(*drivers.TaskConfig)) *onceTask {
	lines := filepath.Join(a.state, "lines"+mark())
	must(a.t, os.Chmod(a.state, 0o755))
	must(a.t, os.WriteFile(lines, nil, 0o666))
	must(a.t, os.Chmod(lines, 0o666))
	script := "echo x >> " + lines + "; echo first; echo first >&2; while [ ! -e " + lines + ".go ]; do sleep 0.01; done; echo last; exit 7"
	return &onceTask{a: a, lines: lines, script: script, cfg: a.shell(script, "", change...)}
}

// again is what the next agent asks for: under a new id, and with a new token.
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
	eventually(o.a.t, "it runs", func() bool { return strings.Contains(o.a.output(o.cfg), "first") })
}

func (o *onceTask) end() { must(o.a.t, os.WriteFile(o.lines+".go", nil, 0o600)) }

// known are the ids of the tasks that the driver has.
func (a *agent) known() (ids []string) {
	a.driver.mu.Lock()
	defer a.driver.mu.Unlock()
	for id := range a.driver.handles {
		ids = append(ids, id)
	}
	return ids
}

func TestStartTask_ReturnsTheRunThatNoAgentKnows(t *testing.T) {
	for _, ended := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("ended: %v, another plugin: %v", ended, restart), func(t *testing.T) {
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
					eventually(t, "it has ended", func() bool { return strings.Contains(a.output(o.cfg), "last") })
				}
				if restart {
					a.restart()
				}
				next := o.again("")
				a.run(next)
				if got := a.pid(next.ID); got != pid {
					t.Errorf("its process is %d, it was %d", got, pid)
				}
				if known := a.known(); len(known) != 1 || known[0] != next.ID {
					t.Errorf("the driver knows %q", known)
				}
				o.end()
				if r := a.wait(next.ID); r.ExitCode != 7 || r.Err != nil {
					t.Errorf("got %+v", r)
				}
				if n := o.begun(); n != 1 {
					t.Errorf("it was started %d times", n)
				}
				if out := a.output(o.cfg); out != "first\nlast\n" {
					t.Errorf("output %q", out)
				}
				mu.Lock()
				if e := said[next.ID]; e.Exit == nil || e.StderrFrom != (task.LogPlace{}) {
					t.Errorf("its end is explained by %+v", e)
				}
				mu.Unlock()
				a.destroy(next.ID)
			})
		}
	}
}

func TestStartTask_RunsAgainWhenNomadRestarts(t *testing.T) {
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
		"it was waited for": {func(t *testing.T, a *agent, th *drivers.TaskHandle) {
			_, err := a.driver.WaitTask(t.Context(), th.Config.ID)
			must(t, err)
		}, same},
		"it was waited for, another plugin": {func(t *testing.T, a *agent, th *drivers.TaskHandle) {
			_, err := a.driver.WaitTask(t.Context(), th.Config.ID)
			must(t, err)
			a.restart()
		}, same},
		"it was recovered":                   {func(t *testing.T, a *agent, th *drivers.TaskHandle) { must(t, a.RecoverTask(th)) }, same},
		"it was recovered by another plugin": {func(t *testing.T, a *agent, th *drivers.TaskHandle) { a.restart(); must(t, a.RecoverTask(th)) }, same},
		"it was stopped":                     {func(t *testing.T, a *agent, th *drivers.TaskHandle) { must(t, a.StopTask(th.Config.ID, 0, "")) }, same},
		"the configuration changed":          {nil, config(`kill_mode = "all"`)},
		"a limit changed": {nil, with(func(c *drivers.TaskConfig) {
			c.Resources.NomadResources.Memory.MemoryMB = 64
		})},
		"the user changed": {nil, with(func(c *drivers.TaskConfig) {
			if os.Geteuid() == 0 {
				c.User = "nobody"
			} else { // nobody else can be chosen
				c.Resources.NomadResources.Memory.MemoryMB = 64
			}
		})},
		"its output is discarded now": {nil, with(func(c *drivers.TaskConfig) { c.StdoutPath, c.StderrPath = os.DevNull, os.DevNull })},
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
			if a.pid(next.ID) == pid {
				t.Error("it is the process from before")
			}
			o.end()
			if r := a.wait(next.ID); r.ExitCode != 7 || r.Err != nil {
				t.Errorf("got %+v", r)
			}
			if n := o.begun(); n != 2 {
				t.Errorf("it was started %d times", n)
			}
			if known := a.known(); len(known) != 1 || known[0] != next.ID {
				t.Errorf("the driver knows %q", known)
			}
			a.destroy(next.ID)
		})
	}
}

func TestRequestOf_CoversTheFIFOsOfLogmon(t *testing.T) {
	for _, same := range []bool{false, true} {
		cfg := &drivers.TaskConfig{StdoutPath: "/alloc/out", StderrPath: "/alloc/err"}
		request := func() string {
			out, err := outputOf(cfg, nil, task.CollectorNomad)
			must(t, err)
			r, err := requestOf(nil, task.State{Output: out})
			must(t, err)
			return r
		}
		before := request()
		if !same {
			cfg.StderrPath = "/alloc/elsewhere"
		}
		if got := request() == before; got != same {
			t.Errorf("the same FIFOs: %v, the same request: %v", same, got)
		}
	}
}

func TestRequestOf_IgnoresTheOrderOfMaps(t *testing.T) {
	config := func() any { // with a pointer, whose address is another each time
		c := testTask{Command: "x", TaskOptions: defaultTaskOptions()}
		c.Ulimit = map[string]string{}
		for i := range 20 {
			c.Ulimit[fmt.Sprint(i)] = "1"
		}
		c.Logs = &LogOptions{MaxFiles: 1}
		return c
	}
	first, err := requestOf(config(), task.State{ID: "a"})
	must(t, err)
	for range 20 {
		if got, err := requestOf(config(), task.State{ID: "b", Command: task.Command{Env: []string{"A=b"}}}); got != first {
			t.Fatalf("got %s, %v, want %s", got, err, first)
		}
	}
}

// slowDestroy is a task whose Destroy waits.
type slowDestroy struct {
	Task
	began, goOn chan struct{}
}

func (e slowDestroy) Destroy(ctx context.Context) error {
	select {
	case <-e.began:
	default:
		close(e.began)
	}
	<-e.goOn
	return e.Task.Destroy(ctx)
}

func TestRecoverTask_KeepsTheExitOfADestroyedTask(t *testing.T) {
	for _, under := range []string{"before DestroyTask", "during DestroyTask", "after DestroyTask"} {
		t.Run(under, func(t *testing.T) {
			a := start(t, nil)
			cfg := a.shell("exit 7", "")
			th := wire(t, a.run(cfg))
			if r := a.wait(cfg.ID); r.ExitCode != 7 {
				t.Fatalf("got %+v", r)
			}
			h, err := a.driver.handle(cfg.ID)
			must(t, err)
			slow := slowDestroy{h.task, make(chan struct{}), make(chan struct{})}
			h.task = slow
			over := make(chan error, 1)
			recovered := make(chan error, 1)
			destroy := func() { over <- a.driver.DestroyTask(cfg.ID, true) } // the agent is killed before it is over
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
			must(t, await(t, "DestroyTask", over))
			must(t, await(t, "RecoverTask", recovered))
			if under == "before DestroyTask" { // that was its own wish
				if _, err := a.driver.WaitTask(t.Context(), cfg.ID); !errors.Is(err, drivers.ErrTaskNotFound) {
					t.Errorf("got %v", err)
				}
				return
			}
			if r := a.wait(cfg.ID); r.ExitCode != 7 || r.Err != nil {
				t.Errorf("got %+v", r)
			}
			if s, err := a.InspectTask(cfg.ID); err != nil || s.State != drivers.TaskStateExited || s.ExitResult.ExitCode != 7 {
				t.Errorf("it is %+v, %v", s, err)
			}
			must(t, a.StopTask(cfg.ID, 0, ""))
			a.destroy(cfg.ID)
			if known := a.known(); len(known) != 0 {
				t.Errorf("the driver knows %q", known)
			}
		})
	}
}

func TestRetire_BoundsTheExitsOfDestroyedTasks(t *testing.T) {
	d := &Driver{handles: map[string]*handle{}}
	for i := range maxDestroyed + 5 {
		h := newHandle(&drivers.TaskConfig{ID: fmt.Sprint(i)})
		h.task = &localTask{exit: &task.Exit{Code: i}}
		d.handles[h.config.ID] = h
		d.retire(h)
	}
	if len(d.destroyed) != maxDestroyed || len(d.handles) != 0 {
		t.Errorf("%d exits and %d tasks are kept", len(d.destroyed), len(d.handles))
	}
	if newest := fmt.Sprint(maxDestroyed + 4); !d.restore(newest) || d.handles[newest].task.Exit().Code != maxDestroyed+4 {
		t.Error("the newest is gone")
	}
	if d.restore("4") {
		t.Error("the oldest is kept")
	}
}

func TestOnlyStart_PrefersTheAgentThatLives(t *testing.T) {
	d := &local{starts: map[string]chan struct{}{}}
	over, err := d.onlyStart(t.Context(), "run")
	must(t, err)
	if _, err := d.onlyStart(t.Context(), "another"); err != nil {
		t.Errorf("another task's start: %v", err)
	}
	gone, kill := context.WithCancel(t.Context())
	told := make(chan error, 1)
	go func() {
		_, err := d.onlyStart(gone, "run")
		told <- err
	}()
	kill()
	if err := await(t, "its answer", told); !errors.Is(err, context.Canceled) {
		t.Errorf("while it waits: %v", err)
	}
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
	must(t, await(t, "the next start", next))
	if _, err := d.onlyStart(gone, "free"); !errors.Is(err, context.Canceled) {
		t.Errorf("of an agent that is gone: %v", err)
	}
}
