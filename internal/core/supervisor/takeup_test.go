// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// once returns a task that appends a line to a file when it begins, and exits with code 7 when a second file exists.
// begun returns how often the task began; end creates the second file.
func (h *host) once(change ...func(*task.State)) (st *task.State, begun func() int, end func()) {
	h.t.Helper()
	lines := filepath.Join(h.dir, fmt.Sprint("lines", testsupport.Mark()))
	script := "echo x >> " + lines + "; echo first; while [ ! -e " + lines +
		".go ]; do sleep 0.01; done; echo last; exit 7"
	st = h.shell(script, append(change, func(st *task.State) { st.Request = "the same" })...)
	return st, func() int {
			b, _ := os.ReadFile(lines)
			return strings.Count(string(b), "x")
		}, func() {
			must.NoError(h.t, os.WriteFile(lines+".go", nil, 0o600))
		}
}

// again returns a request for the same run with a new id, as from an agent that does not know of the earlier start.
func again(st *task.State, n int) *task.State {
	next := *st
	next.ID = fmt.Sprintf("%s-again%d", st.ID, n)
	next.Identity = task.Identity{}
	next.Command.Env = append([]string{"NOMAD_TOKEN=new"}, st.Command.Env...)
	return &next
}

func TestTakeUp_StartsARunOnceIfNoAgentHasRecordedIt(t *testing.T) {
	for name, between := range map[string]func(h *host, st *task.State, end func()){
		"running": func(*host, *task.State, func()) {},
		"ended":   func(h *host, st *task.State, end func()) { end(); h.waitOutput(st, "last") },
		"supervisor killed": func(h *host, _ *task.State, _ func()) {
			h.kill(h.supervisor(), unix.SIGKILL)
		},
		"ended, supervisor killed": func(h *host, st *task.State, end func()) {
			end()
			h.recorded(st)
			h.kill(h.supervisor(), unix.SIGKILL)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachHolding(t, func(t *testing.T, cgroups bool) {
				h := newHost(t, cgroups)
				first := h.client()
				st, begun, end := h.once()
				ran := h.launch(first, st)
				h.waitOutput(st, "first")
				between(h, st, end)
				second := h.client()
				next := again(st, 1)
				taken := h.launch(second, next)
				must.Eq(t, next.ID, taken.ID)
				test.EqOp(t, ran.Identity, taken.Identity)
				first.Forget(st.ID)
				end()
				h.ends(second, next.ID, task.Exit{Code: 7})
				n := begun()
				test.Eq(t, 1, n, test.Sprintf("it was started %d times", n))
				test.Eq(t, "first\nlast\n", h.output(st, "stdout"), test.Sprint("output"))
				_, err := second.Adopt(ctx(t), taken)
				test.NoError(t, err, test.Sprint("failed to adopt it by its new id"))
				h.destroy(second, next.ID)
				left := tree(filepath.Join(h.store.Dir, "tasks"))
				test.False(t, len(left) > 1, test.Sprintf("left behind: %v", left))
			})
		})
	}
}

// recorded waits until a task's exit is on disk.
func (h *host) recorded(st *task.State) {
	h.t.Helper()
	testsupport.Eventually(h.t, "its exit is recorded", func() bool { return h.store.LoadExit(st.ID) != nil })
}

func TestTakeUp_StartsANewRunThatNomadAskedFor(t *testing.T) {
	for name, change := range map[string]func(h *host, st, next *task.State){
		"an agent knows of the earlier run": func(h *host, st, _ *task.State) { must.NoError(h.t, h.store.Claim(st.ID)) },
		"another request":                   func(_ *host, _, next *task.State) { next.Request = "another" },
		"the request of an older driver":    func(_ *host, _, next *task.State) { next.Request = "" },
		"the earlier state is damaged": func(h *host, st, _ *task.State) {
			must.NoError(h.t, os.WriteFile(filepath.Join(h.store.TaskDir(st.ID), "task.json"), nil, 0o600))
		},
	} {
		for _, ended := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ended: %v", name, ended), func(t *testing.T) {
				h := newHost(t, withCgroup)
				c := h.client()
				st, begun, end := h.once()
				first := h.launch(c, st)
				h.waitOutput(st, "first")
				if ended {
					end()
					h.wait(c, st.ID)
				}
				next := again(st, 1)
				change(h, st, next)
				second := h.launch(c, next)
				must.NotEqOp(t, first.Identity, second.Identity,
					must.Sprint("it is the earlier run"))
				test.False(t, first.Identity.Alive(), test.Sprint("the earlier run still exists"))
				end()
				h.ends(c, next.ID, task.Exit{Code: 7})
				n := begun()
				test.Eq(t, 2, n, test.Sprintf("it was started %d times", n))
				h.destroy(c, next.ID)
			})
		}
	}
}

// slowProgram returns a script that cannot be executed until release is called: this process holds a lease on it
// (fcntl(2), F_SETLEASE), so opening it blocks, but for at most 45 s.
func slowProgram(t *testing.T, script string) (path string, release func()) {
	t.Helper()
	fd, err := unix.MemfdCreate("slow", unix.MFD_CLOEXEC)
	must.NoError(t, err)
	w := os.NewFile(uintptr(fd), "slow")
	_, err = w.WriteString("#!/bin/sh\n" + script)
	must.NoError(t, err)
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) // a file that is open for writing can't be executed
	must.NoError(t, err)
	must.NoError(t, w.Close())
	t.Cleanup(func() { f.Close() })
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	must.NoError(t, err)
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), func() {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		must.NoError(t, err)
	}
}

func TestTakeUp_WaitsForAStartUnderWay(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		st, begun, end := h.once()
		path, release := slowProgram(t, st.Command.Args[1])
		st.Command.Path, st.Command.Args = path, nil
		clients := []*Client{h.client(), h.client()}
		type answer struct {
			st  *task.State
			err error
		}
		launch := func(c *Client, st *task.State) chan answer {
			answered := make(chan answer, 1)
			go func() {
				got, err := c.Launch(ctx(t), st)
				answered <- answer{got, err}
			}()
			return answered
		}
		first := launch(clients[0], st)
		h.waitLauncher("launch:exec")
		next := again(st, 1)
		second := launch(clients[1], next)
		for range 100 { // 100 round trips: enough time for the second launch to begin waiting
			clients[1].SupervisorPID(ctx(t))
		}
		select {
		case got := <-second:
			t.Fatalf("the second start did not wait: %+v", got)
		default:
		}
		release()
		was, is := <-first, <-second
		must.NoError(t, was.err)
		must.NoError(t, is.err)
		must.Eq(t, next.ID, is.st.ID)
		test.EqOp(t, was.st.Identity, is.st.Identity)
		clients[0].Forget(st.ID)
		end()
		e := h.wait(clients[1], next.ID)
		test.Eq(t, 7, e.Code, test.Sprintf("exit %+v", e))
		n := begun()
		test.Eq(t, 1, n, test.Sprintf("it was started %d times", n))
		h.destroy(clients[1], next.ID)
	})
}

func TestTakeUp_KeepsOnlyTheNewID(t *testing.T) {
	h := newHost(t, withCgroup)
	first, second := h.client(), h.client()
	st, begun, end := h.once()
	ran := h.launch(first, st)
	next := again(st, 1)
	h.launch(second, next)
	// the first client does not know the new id: after each crash, it tries to adopt the run by the earlier id
	for range 3 {
		h.kill(h.supervisor(), unix.SIGKILL)
		if _, err := first.Adopt(ctx(t), ran); !errors.Is(err, ErrUnknownTask) {
			t.Fatalf("by its earlier id: %v", err)
		}
		states, err := h.store.List()
		must.NoError(t, err, must.Sprint("the states on disk"))
		must.SliceLen(t, 1, states, must.Sprint("the states on disk"))
		must.Eq(t, next.ID, states[0].ID, must.Sprint("the states on disk"))
	}
	end()
	h.ends(second, next.ID, task.Exit{Code: 7})
	n := begun()
	test.Eq(t, 1, n, test.Sprintf("it was started %d times", n))
	h.destroy(second, next.ID)
}

func TestTakeUp_IsFinishedAfterTheSupervisorIsKilled(t *testing.T) {
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("ended: %v", ended), func(t *testing.T) {
			h := newHost(t, withCgroup)
			first := h.client()
			st, begun, end := h.once()
			ran := h.launch(first, st)
			h.waitOutput(st, "first")
			if ended {
				end()
				h.recorded(st)
			}
			first.Close()
			testsupport.Eventually(t, "the supervisor is gone", func() bool { // an idle supervisor may end by itself
				for _, pid := range h.supervisors() {
					unix.Kill(pid, unix.SIGKILL)
				}
				return len(h.supervisors()) == 0
			})
			// as if the supervisor was killed in a take-up: the state has the new id, but the directory has the earlier id
			next := again(st, 1)
			from := h.store.TaskDir(st.ID)
			must.NoError(t, h.store.Rename(ran, next.ID))
			must.NoError(t, os.Rename(h.store.TaskDir(next.ID), from))
			second := h.client()
			got := h.launch(second, again(st, 1))
			must.Eq(t, next.ID, got.ID, must.Sprintf("got %+v", got))
			test.EqOp(t, ran.Identity, got.Identity, test.Sprintf("got %+v", got))
			end()
			if e := h.wait(second, next.ID); e.Code != 7 || e.Lost && !ended {
				t.Errorf("exit %+v", e)
			}
			n := begun()
			test.Eq(t, 1, n, test.Sprintf("it was started %d times", n))
			test.Eq(t, "first\nlast\n", h.output(st, "stdout"), test.Sprint("output"))
			h.destroy(second, next.ID)
		})
	}
}

func TestTakeUp_KeepsAnExitThatIsBeingSaved(t *testing.T) {
	h := newHost(t, withoutCgroup)
	first, second := h.client(), h.client()
	for i := range 40 { // the task ends at about the time of the second launch
		lines := filepath.Join(h.dir, "lines")
		st := h.shell(fmt.Sprintf("echo x >> %s; sleep 0.00%d; exit 7", lines, i%10),
			func(st *task.State) { st.Request = "the same" })
		h.launch(first, st)
		next := again(st, 1)
		h.launch(second, next)
		h.ends(second, next.ID, task.Exit{Code: 7})
		if e := h.store.LoadExit(next.ID); e == nil || e.Code != 7 {
			t.Errorf("exit on disk %+v", e)
		}
		first.Forget(st.ID)
		h.destroy(second, next.ID)
		b, _ := os.ReadFile(lines)
		must.SliceLen(t, 2*(i+1), b, must.Sprintf("after %d tasks", i+1))
	}
	left := tree(filepath.Join(h.store.Dir, "tasks"))
	test.False(t, len(left) > 1, test.Sprintf("left behind: %v", left))
}

// If an agent is killed just after it restarted a task, the next agent knows only the earlier run: it recovers that
// run, gets its exit and destroys it.
func TestDestroy_SparesALaterRunOfTheTask(t *testing.T) {
	h := newHost(t, withCgroup)
	first := h.client()
	mark := filepath.Join(h.dir, "mark")
	st := h.shell("if [ -e " + mark + " ]; then exec sleep 1000; fi; touch " + mark + "; exit 7")
	ran := h.launch(first, st)
	h.ends(first, st.ID, task.Exit{Code: 7})
	must.NoError(t, h.store.Claim(st.ID))
	h.destroy(first, st.ID)
	later := h.launch(first, again(st, 1))

	second := h.client()
	_, err := second.Adopt(ctx(t), ran)
	must.NoError(t, err)
	h.ends(second, st.ID, task.Exit{Code: 7})
	h.destroy(second, st.ID)
	must.Nil(t, first.Exit(later.ID), must.Sprint("the later run ended"))
	must.NoError(t, first.Signal(ctx(t), later.ID, unix.SIGTERM, task.KillProcess))
	h.ends(first, later.ID, task.Exit{Signal: int(unix.SIGTERM)})
	h.destroy(first, later.ID)
}
