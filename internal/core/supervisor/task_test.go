// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// eachHolding runs a test with tasks in cgroups, and with tasks in process groups only.
func eachHolding(t *testing.T, test func(t *testing.T, cgroups bool)) {
	for name, cgroups := range map[string]bool{"in a cgroup": withCgroup, "without cgroup": withoutCgroup} {
		t.Run(name, func(t *testing.T) { test(t, cgroups) })
	}
}

func TestExit_IsReported(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		for script, want := range map[string]task.Exit{
			"exit 0":                {},
			"exit 7":                {Code: 7},
			"exit 255":              {Code: 255},
			"kill -TERM $$":         {Signal: int(unix.SIGTERM)},
			"kill -SEGV $$":         {Signal: int(unix.SIGSEGV)},
			"kill -KILL $$":         {Signal: int(unix.SIGKILL)},
			"(sleep 60 & ); exit 3": {Code: 3},
		} {
			st := h.launch(c, h.shell(script))
			h.ends(c, st.ID, want, script)
			got := c.Exit(st.ID)
			test.False(t, got.OOMKilled, test.Sprintf("%s: got %+v", script, got))
			test.False(t, got.At.IsZero(), test.Sprintf("%s: got %+v", script, got))
			h.destroy(c, st.ID)
		}
	})
}

func TestOutput_IsCompleteBeforeTheExit(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		for range 20 {
			st := h.launch(c, h.shell("seq 1 3000; echo last >&2"))
			h.wait(c, st.ID)
			lines := strings.Split(h.output(st, "stdout"), "\n")
			must.SliceLen(t, 3001, lines, must.Sprintf("%d lines in stdout", len(lines)-1))
			test.Eq(t, "3000", lines[2999], test.Sprintf("%d lines in stdout", len(lines)-1))
			test.Eq(t, "last\n", h.output(st, "stderr"), test.Sprint("stderr"))
			h.destroy(c, st.ID)
		}
	})
}

func TestLaunch_CleansUpAfterAFailedStart(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		for _, path := range []string{"/nowhere/prog", "/etc/passwd", "no-such-program", ""} {
			_, err := c.Launch(ctx(t), h.shell("", func(st *task.State) { st.Command.Path = path }))
			var e *launch.Error
			must.True(t, errors.As(err, &e), must.Sprintf("%q: got %v, want a launch.Error", path, err))
			must.NotEq(t, "", e.Message, must.Sprintf("%q: the error has no message", path))
			test.StrNotContains(t, e.Message, "\n", test.Sprintf("%q: the message has several lines", path))
		}
		left := tree(h.store.Dir + "/tasks")
		test.False(t, len(left) > 1, test.Sprintf("left behind: %v", left))
	})
}

func TestSignal_ReachesTheProcessesOfTheKillMode(t *testing.T) {
	// a shell runs its trap after each sleep, before it looks for the file: no signal is missed
	const script = `until="until [ -e FILE ]; do sleep 0.05; done"
		trap 'echo main' USR1
		sh -c "trap 'echo child' USR1; echo ready; $until" &
		setsid sh -c "trap 'echo daemon' USR1; echo ready; $until" &
		eval "$until"; wait`
	eachHolding(t, func(t *testing.T, cgroups bool) {
		for mode, want := range map[task.KillMode]string{
			task.KillProcess: "main", "": "main",
			task.KillGroup: "child main", task.KillAll: "child daemon main",
		} {
			if mode == task.KillAll && !cgroups { // the daemon has left the process group
				want = "child main"
			}
			h := newHost(t, cgroups)
			c := h.client()
			file := filepath.Join(h.dir, "go")
			st := h.launch(c, h.shell(strings.ReplaceAll(script, "FILE", file)))
			testsupport.Eventually(t, "all three run", func() bool {
				return strings.Count(h.output(st, "stdout"), "ready") == 2
			})
			must.NoError(t, c.Signal(ctx(t), st.ID, unix.SIGUSR1, mode))
			must.NoError(t, os.WriteFile(file, nil, 0o600))
			h.wait(c, st.ID)
			var got []string
			for _, who := range []string{"child", "daemon", "main"} {
				if strings.Contains(h.output(st, "stdout"), who+"\n") {
					got = append(got, who)
				}
			}
			test.Eq(t, want, strings.Join(got, " "), test.Sprintf("kill mode %q reached %v", mode, got))
			test.ErrorIs(t, c.Signal(ctx(t), st.ID, unix.SIGUSR1, mode), ErrEnded,
				test.Sprint("signal after the end"))
			h.destroy(c, st.ID)
			test.ErrorIs(t, c.Signal(ctx(t), st.ID, unix.SIGUSR1, mode), ErrUnknownTask,
				test.Sprint("signal after destroy"))
		}
	})
}

// daemons are scripts whose `sleep MARK` leaves the task's process group, session, environment, standard streams or
// parent. Without a cgroup, a process that has left the process group cannot be found.
var daemons = map[string]string{
	"in the background":        "sleep MARK & ",
	"double fork":              "(sleep MARK & ) ; ",
	"own session":              "setsid -f sleep MARK; ",
	"own session, double fork": "(setsid sh -c '(setsid sleep MARK & )' & ) ; ",
	"no environment, no stdio": "(env -i setsid -f sleep MARK <&- >&- 2>&- & ) ; ",
	"ignores signals":          "(trap '' HUP INT TERM; setsid -f sleep MARK) ; ",
	"stopped": "setsid -f sh -c 'sleep MARK & until grep -qx sleep /proc/$!/comm; do sleep 0.01; " +
		"done; kill -STOP $!; kill -STOP $$'; ",
	"another directory": "(cd /tmp && setsid -f nohup sleep MARK >/dev/null 2>&1); ",
}

func TestKill_EndsDaemonsOfTheTask(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		for name, script := range daemons {
			if !cgroups && strings.Contains(script, "setsid") {
				continue
			}
			for _, how := range []string{"kill", "destroy", "exit and destroy"} {
				m := testsupport.Mark()
				then := "exec sleep 1000"
				if how == "exit and destroy" {
					then = "while [ ! -e " + h.dir + "/" + m + " ]; do sleep 0.01; done; exit 4"
				}
				st := h.launch(c, h.shell(strings.ReplaceAll(script, "MARK", m)+then))
				testsupport.WaitSleepers(t, m, 1)
				switch how {
				case "kill":
					must.NoError(t, c.Kill(ctx(t), st.ID))
				case "destroy":
					h.destroy(c, st.ID)
				default:
					must.NoError(t, os.WriteFile(h.dir+"/"+m, nil, 0o600))
					h.ends(c, st.ID, task.Exit{Code: 4}, name)
					h.destroy(c, st.ID)
				}
				h.gone(m, name+", "+how)
				h.destroy(c, st.ID)
			}
		}
	})
}

func TestKill_EndsATreeThatKeepsForking(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		m := testsupport.Mark()
		st := h.launch(c, h.shell("while :; do "+h.background(m)+"sleep 0.005; done"))
		testsupport.Eventually(t, "some run", func() bool { return len(testsupport.Sleepers(m)) > 5 })
		must.NoError(t, c.Kill(ctx(t), st.ID))
		h.gone(m, "after the kill")
		if e := c.Exit(st.ID); e == nil || e.Signal != int(unix.SIGKILL) {
			t.Errorf("exit is %+v", e)
		}
		h.destroy(c, st.ID)
	})
}

func TestDestroy_IsIdempotentAndWorksFromAnyClient(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		first := h.client()
		m := testsupport.Mark()
		st := h.launch(first, h.shell(h.background(m)+"exec sleep "+m))
		testsupport.WaitSleepers(t, m, 2)
		first.Close()

		stranger := h.client()
		h.destroy(stranger, st.ID)
		h.gone(m, "destroyed")
		_, err := os.Stat(h.store.TaskDir(st.ID))
		test.ErrorIs(t, err, fs.ErrNotExist, test.Sprint("its directory"))
		h.destroy(stranger, st.ID)
		h.destroy(stranger, "never/heard/of")
	})
}

func TestDestroy_ReleasesWaiters(t *testing.T) {
	h := newHost(t, withoutCgroup)
	c := h.client()
	st := h.launch(c, h.shell("exec sleep 1000"))
	ended, err := c.Exited(st.ID)
	must.NoError(t, err)
	h.destroy(c, st.ID)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("still waiting")
	}
	got := h.reported(st.ID)
	must.SliceLen(t, 1, got, must.Sprint("exits"))
	test.Eq(t, int(unix.SIGKILL), got[0].Signal, test.Sprint("exits"))
}

func TestLaunch_RemovesAnEarlierRun(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client()
	m := testsupport.Mark()
	st := h.shell("setsid -f sleep " + m + "; exec sleep " + m)
	h.launch(c, st)
	testsupport.WaitSleepers(t, m, 2)
	next := *st
	next.ID += "-next"
	next.Command.Args = []string{"-c", "exec sleep 1000"}
	h.launch(c, &next)
	test.SliceEmpty(t, testsupport.Sleepers(m), test.Sprint("the earlier run goes on"))
	test.Nil(t, c.Exit(next.ID), test.Sprint("the next run ended"))
	h.destroy(c, st.ID) // must not affect the next run, which uses the same cgroup
	test.Nil(t, c.Exit(next.ID), test.Sprint("the next run ended"))
	h.destroy(c, next.ID)
}

func TestLaunch_StartsOneTaskIfRepeated(t *testing.T) {
	h := newHost(t, withoutCgroup)
	c := h.client()
	m := testsupport.Mark()
	st := h.shell("exec sleep " + m)
	first := h.launch(c, st)
	again, err := c.Launch(ctx(t), st)
	must.NoError(t, err, must.Sprintf("got %+v", again))
	test.EqOp(t, first.Identity, again.Identity, test.Sprintf("got %+v", again))
	testsupport.WaitSleepers(t, m, 1)
	h.destroy(c, st.ID)
}
