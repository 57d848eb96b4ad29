// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// disguiseVar makes the test binary a task that looks like a launcher: see disguisedMain.
const disguiseVar = "OUTRIDER_TEST_DISGUISE"

const (
	launchersName = "a launcher's name"
	noArguments   = "no arguments"
)

// disguisedMain is the main function of a task that looks like a launcher, in the way that the parameter as names. The
// task exits with code 7 once the file named by its first argument exists.
func disguisedMain(as string) {
	file := strings.Clone(os.Args[1])
	switch as {
	case launchersName:
		setName("launch:exec")
	case noArguments:
		unmapArguments()
	}
	fmt.Println("first")
	for {
		if _, err := os.Stat(file); err == nil {
			os.Exit(7)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// unmapArguments makes /proc/self/cmdline empty, which needs no privilege: it unmaps the top of the stack, from the
// page of the first argument on.
func unmapArguments() {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		panic(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	start, _ := strconv.ParseUint(f[48-3], 10, 64) // arg_start, proc_pid_stat(5)
	if b, err = os.ReadFile("/proc/self/maps"); err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(b)) {
		if bounds, _, _ := strings.Cut(line, " "); strings.HasSuffix(line, "[stack]\n") {
			_, top, _ := strings.Cut(bounds, "-")
			end, _ := strconv.ParseUint(top, 16, 64)
			start -= start % uint64(os.Getpagesize())
			_, _, _ = unix.Syscall(unix.SYS_MUNMAP, uintptr(start), uintptr(end-start), 0)
		}
	}
	if b, err = os.ReadFile("/proc/self/cmdline"); err != nil || len(b) > 0 {
		panic("the arguments are still readable")
	}
}

// disguised returns a task that looks like a launcher and exits with code 7 once the file exists.
func (h *host) disguised(as, file string) *task.State {
	h.t.Helper()
	return h.shell("", func(st *task.State) {
		if as == "a launcher's arguments" {
			b, err := os.ReadFile("/bin/sh")
			must.NoError(h.t, err)
			must.NoError(h.t, os.WriteFile(filepath.Join(h.dir, argv0), b, 0o755))
			st.Command.Path, st.Command.Env = argv0, []string{"PATH=" + h.dir + ":/usr/bin:/bin"}
			st.Command.Args = []string{"-c", waits(file, "exit 7")}
			return
		}
		self, err := os.Executable()
		must.NoError(h.t, err)
		st.Command.Path, st.Command.Args = self, []string{file}
		// with this many variables, no page contains both the arguments and the part of the stack that is in use
		st.Command.Env = slices.Repeat([]string{"A="}, 1500)
		st.Command.Env[0] = disguiseVar + "=" + as
		st.Command.Env[1] = "GORACE=atexit_sleep_ms=0" // or else BeginRoles re-executes it and drops repeated variables
	})
}

var disguises = []string{"a launcher's arguments", launchersName, noArguments}

func TestAdoption_TreatsALauncherLookalikeAsTheTask(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		for _, as := range disguises {
			for _, ends := range []bool{false, true} {
				h := newHost(t, cgroups)
				file := filepath.Join(h.dir, "go")
				st := h.orphaned(h.disguised(as, file))
				want := task.Exit{Code: 7}
				if ends {
					must.NoError(t, os.WriteFile(file, nil, 0o600))
					h.waitReaped(st)
					want = task.Exit{Lost: true} // no process held the task's pidfd
				} else if !SupportsPidfdExit() {
					want = task.Exit{Lost: true}
				}
				c := h.client()
				stat, err := c.Adopt(ctx(t), st)
				must.NoError(t, err, must.Sprintf("%s, ends before the adoption: %v", as, ends))
				if !ends && !stat.Running {
					t.Errorf("%s: status %+v", as, stat)
				}
				must.NoError(t, os.WriteFile(file, nil, 0o600))
				h.ends(c, st.ID, want, as, ends)
				h.destroy(c, st.ID)
				reapOrphans()
			}
		}
	})
}

// Tasks that hide their arguments must not delay an adoption: a new supervisor must serve within 30 s (readyTime).
func TestAdoption_IsFastEvenIfTasksHideTheirArguments(t *testing.T) {
	h := newHost(t, withCgroup)
	first := h.plugin()
	file := filepath.Join(h.dir, "go")
	var tasks []*task.State
	for range 20 {
		st := first.launch(h.disguised(noArguments, file))
		h.waitOutput(st, "first")
		tasks = append(tasks, st)
	}
	pid := h.supervisor()
	first.kill()
	h.kill(pid, unix.SIGKILL)
	c := h.client()
	other := h.launch(c, h.shell("exit 3"))
	h.ends(c, other.ID, task.Exit{Code: 3}, "another task")
	h.destroy(c, other.ID)
	for _, st := range tasks {
		stat, err := c.Adopt(ctx(t), st)
		must.NoError(t, err, must.Sprintf("status %+v", stat))
		test.True(t, stat.Running, test.Sprintf("status %+v", stat))
	}
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, st := range tasks {
		h.ends(c, st.ID, task.Exit{Code: 7})
		h.destroy(c, st.ID)
	}
	reapOrphans()
}

// Earlier versions wrote no record. A process that has none must be taken for the task, not for a launcher.
func TestAdoption_TreatsAProcessWithoutRecordAsTheTask(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"missing":   os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 0) },
	} {
		h := newHost(t, withCgroup)
		file := filepath.Join(h.dir, "go")
		st := h.orphaned(h.shell(waits(file, "exit 7")))
		must.NoError(t, damage(h.store.Record(st.ID)))
		c := h.client()
		stat, err := c.Adopt(ctx(t), st)
		must.NoError(t, err, must.Sprintf("%s: status %+v", name, stat))
		test.True(t, stat.Running, test.Sprintf("%s: status %+v", name, stat))
		must.NoError(t, os.WriteFile(file, nil, 0o600))
		h.ends(c, st.ID, task.Exit{Code: 7}, name)
		h.destroy(c, st.ID)
		reapOrphans()
	}
}

// The test kills the supervisor at a random moment of a start, and in every second round also the launched process. If
// the task is reported as never started, its program must not have run. If the program has run, its exit is exact, or
// lost.
func TestAdoption_ReportsAStartInterruptedAtAnyMoment(t *testing.T) {
	h := newHost(t, withCgroup)
	outcomes := map[string]int{}
	for i := range 24 {
		first := h.plugin()
		warm := first.launch(h.shell("exit 0")) // starts a supervisor
		ran := filepath.Join(h.dir, fmt.Sprint("ran", i))
		st := h.shell("echo > " + ran + "; exec sleep 1000")
		must.NoError(t, json.NewEncoder(first.stdin).Encode(pluginOrder{Launch: st}))
		sup := h.supervisor()
		var now *task.State
		for end := time.Now().Add(time.Minute); time.Now().Before(end); { // busy waiting, because a sleep would be too long
			var err error
			if now, err = h.store.Load(st.ID); err == nil && (i%4 == 0 || now.Identity.PID != 0) {
				break
			}
		}
		for end := time.Now().Add(rand.N(time.Duration(i%4+1) * time.Millisecond)); i%8 > 1 && time.Now().Before(end); {
		}
		must.NoError(t, unix.Kill(first.cmd.Process.Pid, unix.SIGSTOP)) // it must not send the pidfd to a new supervisor
		must.NoError(t, unix.Kill(sup, unix.SIGKILL))
		h.waitDead(&task.State{Identity: task.Identity{PID: sup}}) // until then, the supervisor may record the task's exit
		killed := i%2 == 0 && now != nil && now.Identity.PID != 0
		if killed {
			_ = unix.Kill(now.Identity.PID, unix.SIGKILL)
			h.waitReaped(now)
		}
		first.kill()

		c := h.client()
		stat, err := c.Adopt(ctx(t), &task.State{ID: st.ID}) // Nomad has no other state of a start that failed
		switch {
		case errors.Is(err, ErrUnknownTask):
			outcomes["never"]++
			_, err := os.Stat(ran)
			test.Error(t, err, test.Sprintf("kill %d: the program ran, but is reported as never started", i))
		case err != nil:
			t.Errorf("kill %d: %v", i, err)
		case killed:
			outcomes["killed"]++
			h.ends(c, st.ID, task.Exit{Lost: true}, i) // no process held the task's pidfd
		default:
			outcomes["runs"]++
			test.True(t, stat.Running, test.Sprintf("kill %d: status %+v", i, stat))
			testsupport.Eventually(t, "it runs", func() bool { _, err := os.Stat(ran); return err == nil })
		}
		h.destroy(c, st.ID)
		h.destroy(c, warm.ID)
		c.Close()
		reapOrphans()
	}
	t.Log(outcomes)
}

// The count of OOM kills in a cgroup includes those of earlier runs of the task.
func TestExit_IsOOMOnlyIfTheRunFailed(t *testing.T) {
	for name, c := range map[string]struct {
		before, after uint64
		e             task.Exit
		oom           bool
		kills         uint64
	}{
		"OOM-killed":                        {0, 1, task.Exit{Signal: 9}, true, 1},
		"fails after its child's OOM kills": {0, 2, task.Exit{Code: 1}, true, 2},
		"succeeds despite child's OOM kill": {0, 1, task.Exit{}, false, 1},
		"fails, OOM kills in earlier runs":  {3, 3, task.Exit{Code: 1}, false, 0},
		"killed, OOM kills in earlier runs": {3, 3, task.Exit{Signal: 9}, false, 0},
		"OOM-killed, as were earlier runs":  {3, 4, task.Exit{Signal: 9}, true, 4},
		"killed without OOM":                {0, 0, task.Exit{Signal: 9}, false, 0},
	} {
		dir := t.TempDir()
		must.NoError(t, os.WriteFile(filepath.Join(dir, "memory.oom_control"), fmt.Appendf(nil,
			"oom_kill_disable 0\nunder_oom 0\noom_kill %d\n", c.after), 0o600))
		s := &server{store: task.Store{Dir: t.TempDir()}, clients: map[*wire.Peer]bool{}, processes: map[string]*process{}}
		p := foundTask(&task.State{
			ID: "a/t/1", OOMKills: c.before,
			Group: cgroup.Group{Mode: cgroup.V1, V1: map[string]string{"memory": dir}, Controllers: []string{"memory"}},
		})
		e := c.e
		s.finish(p, &e)
		for where, got := range map[string]*task.Exit{"reported": p.exit, "on disk": s.store.LoadExit("a/t/1")} {
			if got == nil || got.OOMKilled != c.oom || got.OOMKills != c.kills || got.Code != c.e.Code ||
				got.Signal != c.e.Signal {
				t.Errorf("%s, %s: %+v", name, where, got)
			}
		}
	}
}

// The next run of a task uses the same cgroup, which Nomad made. The cgroup's count of OOM kills does not start at 0.
func TestExit_DoesNotCountOOMKillsOfEarlierRuns(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client()
	st := h.shell("exec tail /dev/zero", func(st *task.State) { st.Limits.MemoryMax = 32 << 20 })
	if !st.Group.Has("memory") {
		t.Skip("no memory cgroup")
	}
	h.launch(c, st)
	e := h.wait(c, st.ID)
	must.True(t, e.OOMKilled, must.Sprintf("the first run: exit %+v", e))
	must.Eq(t, int(unix.SIGKILL), e.Signal, must.Sprintf("the first run: exit %+v", e))
	for i, then := range []string{"exit 1", "kill -KILL $$"} {
		next := *st
		next.ID += fmt.Sprint("-", i)
		next.Command.Args = []string{"-c", then}
		h.launch(c, &next)
		e := h.wait(c, next.ID)
		must.False(t, e.OOMKilled, must.Sprintf("%s: exit %+v", then, e))
		test.Eq(t, 0, e.OOMKills, test.Sprintf("%s: exit %+v", then, e))
		h.destroy(c, next.ID)
	}
}

// A slow launch or adoption delays only requests about its own task.
func TestRequests_WaitForTheLaunchOrAdoptionOfTheirTask(t *testing.T) {
	for _, pending := range []phase{starting, found} {
		// busySince is the zero time, so only a process that has not ended keeps the supervisor from ending
		s := &server{clients: map[*wire.Peer]bool{}, processes: map[string]*process{}, idle: time.Hour}
		slow := newTask(&task.State{ID: "slow"})
		slow.phase = pending
		other := newProcess("other")
		other.phase = running
		s.processes["slow"], s.processes["other"] = slow, other
		p, err := s.find("other")
		must.NoError(t, err, must.Sprintf("got %+v", p))
		must.Eq(t, "other", p.id, must.Sprintf("got %+v", p))
		other.phase = ended
		test.False(t, s.mayEnd(), test.Sprintf("the supervisor may end in phase %v", pending))
		type answer struct {
			what string
			p    *process
		}
		answers := make(chan answer)
		go func() {
			p, _ := s.find("slow")
			answers <- answer{"found", p}
		}()
		go func() {
			p, _ := s.enter(newProcess("slow"))
			answers <- answer{"known", p}
		}()
		select {
		case a := <-answers:
			t.Fatalf("%s in phase %v", a.what, pending)
		case <-time.After(50 * time.Millisecond):
		}
		s.mu.Lock()
		slow.phase = running
		s.mu.Unlock()
		close(slow.begun)
		for range 2 {
			a := <-answers
			test.EqOp(t, slow, a.p, test.Sprint(a.what))
		}
	}
}
