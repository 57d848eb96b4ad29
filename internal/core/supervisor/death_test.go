// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// waits returns a script that waits until a file exists, and then runs a last command.
func waits(file, then string) string {
	return fmt.Sprintf("echo first; while [ ! -e %s ]; do sleep 0.005; done; echo last; %s", file, then)
}

func TestExit_IsExactAfterTheSupervisorIsKilled(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		for name, want := range map[string]struct {
			then string
			exit task.Exit
		}{
			"by code":   {"exit 7", task.Exit{Code: 7}},
			"by code 0": {"exit 0", task.Exit{}},
			"by signal": {"kill -SEGV $$", task.Exit{Signal: int(unix.SIGSEGV)}},
		} {
			for when, scene := range map[string]func(st *task.State, file string){
				"ends afterwards": func(st *task.State, file string) {
					h.kill(h.supervisor(), unix.SIGKILL)
					h.isServed(c)
					must.NoError(t, os.WriteFile(file, nil, 0o600))
				},
				"ends unobserved": func(st *task.State, file string) {
					pid := h.supervisor()
					must.NoError(t, unix.Kill(pid, unix.SIGSTOP)) // the supervisor must not observe the end of the task
					must.NoError(t, os.WriteFile(file, nil, 0o600))
					h.waitDead(st)
					h.kill(pid, unix.SIGKILL)
				},
			} {
				file := filepath.Join(h.dir, "go")
				st := h.launch(c, h.shell(waits(file, want.then)))
				h.waitOutput(st, "first")
				scene(st, file)
				if !SupportsPidfdExit() { // before Linux 6.15, only the parent gets the exit
					want.exit = task.Exit{Lost: true}
				}
				h.ends(c, st.ID, want.exit, name, when)
				test.Eq(t, "first\nlast\n", h.output(st, "stdout"), test.Sprintf("%s, %s: output", name, when))
				n := len(h.reported(st.ID))
				test.Eq(t, 1, n, test.Sprintf("%s, %s: its exit was reported %d times", name, when, n))
				h.destroy(c, st.ID)
				reapOrphans()
				os.Remove(file)
			}
		}
	})
}

// waitDead waits until a task's process is a zombie or gone.
func (h *host) waitDead(st *task.State) {
	h.t.Helper()
	testsupport.Eventually(h.t, "the process is dead", func() bool {
		now, err := task.ReadStat(st.Identity.PID)
		return err != nil || now.Zombie
	})
}

// waitReaped waits until a task's process is gone.
func (h *host) waitReaped(st *task.State) {
	h.t.Helper()
	testsupport.Eventually(h.t, "the process is reaped", func() bool { return !st.Identity.Alive() })
}

func TestOutput_LosesNoLineWhenSupervisorsAreKilled(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client()
	// the task writes until this file exists
	enough := filepath.Join(h.dir, "enough")
	st := h.launch(c, h.shell(floods(enough), func(st *task.State) {
		st.Output.MaxFileSize, st.Output.MaxFiles = 64<<10, 1000
	}))
	for range 20 {
		testsupport.Eventually(t, "a supervisor serves", func() bool {
			pids := h.supervisors()
			return len(pids) == 1 && c.SupervisorPID(ctx(t)) == pids[0]
		})
		h.kill(h.supervisor(), unix.SIGKILL)
		time.Sleep(5 * time.Millisecond)
	}
	must.NoError(t, os.WriteFile(enough, nil, 0o600))
	h.ends(c, st.ID, task.Exit{Code: 5})
	h.counted(st)
	h.destroy(c, st.ID)
}

func TestTask_SurvivesItsPlugin(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		for name, c := range map[string]struct {
			both, ends bool
		}{
			"plugin killed, task keeps running":   {},
			"plugin killed, task ends unobserved": {ends: true},
			"both killed, task keeps running":     {both: true},
		} {
			t.Run(name, func(t *testing.T) {
				h := newHost(t, cgroups)
				first := h.plugin()
				file := filepath.Join(h.dir, "go")
				st := first.launch(h.shell(waits(file, "exit 7")))
				h.waitOutput(st, "first")
				pid := h.supervisor()
				first.kill() // first, because the plugin would replace a supervisor that was killed
				if c.both {
					must.NoError(t, unix.Kill(pid, unix.SIGKILL))
					h.waitDead(&task.State{Identity: task.Identity{PID: pid}})
				}
				if c.ends {
					must.NoError(t, os.WriteFile(file, nil, 0o600))
					h.waitDead(st)
				}
				second := h.client()
				stat, err := second.Adopt(ctx(t), st)
				must.NoError(t, err)
				if !c.ends && !stat.Running {
					t.Errorf("status is %+v", stat)
				}
				if !c.both && !c.ends && h.supervisor() != pid { // without a task, the idle supervisor may end
					t.Error("the supervisor was replaced")
				}
				must.NoError(t, os.WriteFile(file, nil, 0o600))
				want := task.Exit{Code: 7}
				if c.both && !SupportsPidfdExit() { // the new supervisor is not the parent of the task
					want = task.Exit{Lost: true}
				}
				h.ends(second, st.ID, want)
				test.Eq(t, "first\nlast\n", h.output(st, "stdout"), test.Sprint("output"))
				h.destroy(second, st.ID)
			})
		}
	})
}

func TestExit_IsLostIfNoProcessSawIt(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		file := filepath.Join(h.dir, "go")
		m := testsupport.Mark()
		background := ""
		if cgroups { // without a cgroup, the sleeper could not be found after the task's end
			background = h.background(m)
		}
		st := h.orphaned(h.shell(background + waits(file, "exit 0")))
		must.NoError(t, os.WriteFile(file, nil, 0o600))
		h.waitDead(st)
		reapOrphans()
		testsupport.Eventually(t, "it is gone", func() bool { reapOrphans(); return !st.Identity.Alive() })
		c := h.client()
		stat, err := c.Adopt(ctx(t), st)
		must.NoError(t, err)
		if stat.Running || stat.Exit == nil || !stat.Exit.Lost || stat.Exit.Reason == "" {
			t.Errorf("status is %+v", stat)
		}
		got := h.wait(c, st.ID)
		test.True(t, got.Lost, test.Sprintf("exit is %+v", got))
		h.destroy(c, st.ID)
		h.gone(m, "it is lost")
	})
}

func TestLaunch_StartsOnceIfTheSupervisorIsKilled(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client()
	for i := range 30 {
		m := testsupport.Mark()
		st := h.shell("", func(st *task.State) { st.Command.Path, st.Command.Args = "sleep", []string{m} })
		killed := make(chan bool)
		go func() {
			defer close(killed)
			time.Sleep(time.Duration(i) * 150 * time.Microsecond)
			for _, pid := range h.supervisors() {
				unix.Kill(pid, unix.SIGKILL)
			}
		}()
		got, err := c.Launch(ctx(t), st)
		<-killed
		if err != nil {
			t.Errorf("kill after %d: %v", i, err)
			continue
		}
		reapOrphans()
		if n := len(testsupport.Sleepers(m)); n != 1 {
			// the supervisor may have answered, and was then killed together with the launched process
			e := h.wait(c, st.ID)
			test.True(t, e.Lost, test.Sprintf("kill after %d: %d run, exit %+v", i, n, e))
		} else if !got.Identity.Alive() {
			t.Errorf("kill after %d: identity %+v is not alive", i, got.Identity)
		}
		h.destroy(c, st.ID)
		n := len(testsupport.Sleepers(m))
		test.Eq(t, 0, n, test.Sprintf("kill after %d: %d are left", i, n))
	}
}

func TestAdoption_RefusesAReusedPid(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		for name, change := range map[string]func(*task.Identity){
			"other start time": func(id *task.Identity) { id.Start -= 100 },
			"other boot":       func(id *task.Identity) { id.BootID = "00000000-0000-0000-0000-000000000000" },
		} {
			h := newHost(t, cgroups)
			// a live process, which stands for one that has reused the task's pid
			other := h.plugin()
			id, err := task.Identify(other.cmd.Process.Pid)
			must.NoError(t, err)
			change(&id)
			st := h.shell("exit 0")
			st.Identity = id
			for _, on := range []string{"handle", "disk"} {
				if on == "disk" {
					must.NoError(t, h.store.Save(st))
				}
				c := h.client()
				stat, err := c.Adopt(ctx(t), st)
				must.NoError(t, err)
				if stat.Running || stat.Exit == nil || !stat.Exit.Lost {
					t.Errorf("%s, from %s: status %+v", name, on, stat)
				}
				for _, mode := range []task.KillMode{task.KillProcess, task.KillGroup, task.KillAll} {
					test.Error(t, c.Signal(ctx(t), st.ID, unix.SIGKILL, mode),
						test.Sprintf("%s, from %s: signalled", name, on))
				}
				_ = c.Kill(ctx(t), st.ID)
				h.destroy(c, st.ID)
				c.Close()
			}
			a := other.do(pluginOrder{Wait: "nothing"})
			test.NotEq(t, "", a.Error, test.Sprintf("%s: the other process answers %+v", name, a))
			other.kill()
		}
	})
}

func TestAdoption_RestoresDamagedStateFromTheHandle(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		for name, damage := range map[string]func(path string) error{
			"truncated": func(path string) error { return os.Truncate(path, 20) },
			"empty":     func(path string) error { return os.Truncate(path, 0) },
			"missing":   os.Remove,
			"newer": func(path string) error {
				return os.WriteFile(path, []byte(`{"version": 99, "id": "?", "command": {"future": true}}`), 0o600)
			},
			"all of it missing": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		} {
			for _, dead := range []bool{false, true} {
				h := newHost(t, cgroups)
				first := h.plugin()
				m := testsupport.Mark()
				st := first.launch(h.shell("sleep " + m + " & echo first; wait"))
				h.waitOutput(st, "first")
				pid := h.supervisor()
				first.kill()
				if dead {
					h.kill(pid, unix.SIGKILL)
				}
				must.NoError(t, damage(filepath.Join(h.store.TaskDir(st.ID), "task.json")))
				c := h.client()
				stat, err := c.Adopt(ctx(t), st)
				must.NoError(t, err, must.Sprintf("%s, supervisor dead: %v: status %+v", name, dead, stat))
				must.True(t, stat.Running, must.Sprintf("%s, supervisor dead: %v: status %+v", name, dead, stat))
				must.NoError(t, c.Signal(ctx(t), st.ID, unix.SIGTERM, task.KillAll))
				h.ends(c, st.ID, task.Exit{Signal: int(unix.SIGTERM)}, name, dead)
				h.destroy(c, st.ID)
				test.SliceEmpty(t, testsupport.Sleepers(m), test.Sprintf("%s: left behind", name))
			}
		}
	})
}

func TestOutput_ContinuesAfterTheStateDirectoryWasRemoved(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client()
	file := filepath.Join(h.dir, "go")
	// the output does not fit into a pipe: without a reader, the task would never end
	st := h.launch(c, h.shell(waits(file, "head -c 200000 /dev/zero | tr '\\0' x; exit 7")))
	h.waitOutput(st, "first")
	must.NoError(t, os.RemoveAll(h.store.Dir))
	h.kill(h.supervisor(), unix.SIGKILL)
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	h.ends(c, st.ID, task.Exit{Code: 7})
	all := strings.Repeat("x", 200000)
	out := h.waitOutput(st, all) // the collector of the killed supervisor may still write it
	test.Eq(t, "first\nlast\n"+all, out, test.Sprintf("output has %d bytes", len(out)))
	h.destroy(c, st.ID)
	reapOrphans()
}
