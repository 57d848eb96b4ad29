package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// once is a task that leaves a line in a file when it begins, and waits for another
// file before it ends with code 7.
func (h *host) once(change ...func(*task.State)) (st *task.State, begun func() int, end func()) {
	h.t.Helper()
	lines := filepath.Join(h.dir, fmt.Sprint("lines", mark()))
	script := "echo x >> " + lines + "; echo first; while [ ! -e " + lines +
		".go ]; do sleep 0.01; done; echo last; exit 7"
	st = h.shell(script, append(change, func(st *task.State) { st.Request = "the same" })...)
	return st, func() int {
			b, _ := os.ReadFile(lines)
			return strings.Count(string(b), "x")
		}, func() {
			must(h.t, os.WriteFile(lines+".go", nil, 0o600))
		}
}

// again is what an agent asks for that knows nothing of an earlier start.
func again(st *task.State, n int) *task.State {
	next := *st
	next.ID = fmt.Sprintf("%s-again%d", st.ID, n)
	next.Identity = task.Identity{}
	next.Command.Env = append([]string{"NOMAD_TOKEN=new"}, st.Command.Env...)
	return &next
}

func TestTakeUp_StartsAnUnclaimedRunOnce(t *testing.T) {
	for name, between := range map[string]func(h *host, st *task.State, end func()){
		"it runs":      func(*host, *task.State, func()) {},
		"it has ended": func(h *host, st *task.State, end func()) { end(); h.waitOutput(st, "last") },
		"the supervisor was killed": func(h *host, _ *task.State, _ func()) {
			h.kill(h.supervisor(), unix.SIGKILL)
		},
		"it ended, the supervisor was killed": func(h *host, st *task.State, end func()) {
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
				if taken.ID != next.ID || taken.Identity != ran.Identity {
					t.Errorf("got %s with %+v, want %s with %+v", taken.ID, taken.Identity, next.ID, ran.Identity)
				}
				first.Forget(st.ID)
				end()
				if e := h.wait(second, next.ID); e.Code != 7 || e.Lost {
					t.Errorf("it ended by %+v", e)
				}
				if n := begun(); n != 1 {
					t.Errorf("it was started %d times", n)
				}
				if out := h.output(st, "stdout"); out != "first\nlast\n" {
					t.Errorf("output %q", out)
				}
				if _, err := second.Adopt(ctx(t), taken); err != nil {
					t.Errorf("it can't be adopted by its new id: %v", err)
				}
				h.destroy(second, next.ID)
				if left := tree(filepath.Join(h.store.Dir, "tasks")); len(left) > 1 {
					t.Errorf("left behind: %v", left)
				}
			})
		})
	}
}

// recorded waits until the end of a task is on disk.
func (h *host) recorded(st *task.State) {
	h.t.Helper()
	eventually(h.t, "its exit is recorded", func() bool { return h.store.LoadExit(st.ID) != nil })
}

func TestTakeUp_StartsANewRunThatNomadAskedFor(t *testing.T) {
	for name, change := range map[string]func(h *host, st, next *task.State){
		"an agent knows of the earlier one": func(h *host, st, _ *task.State) { must(h.t, h.store.Claim(st.ID)) },
		"another request":                   func(_ *host, _, next *task.State) { next.Request = "another" },
		"of an older driver":                func(_ *host, _, next *task.State) { next.Request = "" },
		"the earlier state is damaged": func(h *host, st, _ *task.State) {
			must(h.t, os.WriteFile(filepath.Join(h.store.TaskDir(st.ID), "task.json"), nil, 0o600))
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
				if second.Identity == first.Identity || first.Identity.Alive() {
					t.Error("it is the run from before, or that goes on")
				}
				end()
				if e := h.wait(c, next.ID); e.Code != 7 {
					t.Errorf("it ended by %+v", e)
				}
				if n := begun(); n != 2 {
					t.Errorf("it was started %d times", n)
				}
				h.destroy(c, next.ID)
			})
		}
	}
}

// slowProgram is a script that no process can execute until release is called: one that opens it
// waits for the lease (fcntl(2), F_SETLEASE), for 45 s at most.
func slowProgram(t *testing.T, script string) (path string, release func()) {
	t.Helper()
	fd, err := unix.MemfdCreate("slow", unix.MFD_CLOEXEC)
	must(t, err)
	w := os.NewFile(uintptr(fd), "slow")
	_, err = w.WriteString("#!/bin/sh\n" + script)
	must(t, err)
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) // who has it open for writing keeps it from being executed
	must(t, err)
	must(t, w.Close())
	t.Cleanup(func() { f.Close() })
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	must(t, err)
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), func() {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		must(t, err)
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
			told := make(chan answer, 1)
			go func() {
				got, err := c.Launch(ctx(t), st)
				told <- answer{got, err}
			}()
			return told
		}
		first := launch(clients[0], st)
		h.waitLauncher("launch:exec")
		next := again(st, 1)
		second := launch(clients[1], next)
		for range 100 { // it is at work on the second
			clients[1].SupervisorPID(ctx(t))
		}
		select {
		case got := <-second:
			t.Fatalf("the second start did not wait: %+v", got)
		default:
		}
		release()
		was, is := <-first, <-second
		must(t, was.err)
		must(t, is.err)
		if is.st.ID != next.ID || is.st.Identity != was.st.Identity {
			t.Errorf("got %s with %+v, want %s with %+v", is.st.ID, is.st.Identity, next.ID, was.st.Identity)
		}
		clients[0].Forget(st.ID)
		end()
		if e := h.wait(clients[1], next.ID); e.Code != 7 {
			t.Errorf("it ended by %+v", e)
		}
		if n := begun(); n != 1 {
			t.Errorf("it was started %d times", n)
		}
		h.destroy(clients[1], next.ID)
	})
}

func TestTakeUp_LeavesOneID(t *testing.T) {
	h := newHost(t, withCgroup)
	first, second := h.client(), h.client()
	st, begun, end := h.once()
	ran := h.launch(first, st)
	next := again(st, 1)
	h.launch(second, next)
	// its first client does not know of that: it hands the run to each new supervisor
	for range 3 {
		h.kill(h.supervisor(), unix.SIGKILL)
		if _, err := first.Adopt(ctx(t), ran); !errors.Is(err, ErrUnknownTask) {
			t.Fatalf("by its earlier id: %v", err)
		}
		states, unreadable, err := h.store.List()
		if err != nil || len(unreadable) != 0 || len(states) != 1 || states[0].ID != next.ID {
			t.Fatalf("on disk are %v, %v, %v", states, unreadable, err)
		}
	}
	end()
	if e := h.wait(second, next.ID); e.Code != 7 || e.Lost {
		t.Errorf("it ended by %+v", e)
	}
	if n := begun(); n != 1 {
		t.Errorf("it was started %d times", n)
	}
	h.destroy(second, next.ID)
}

func TestTakeUp_IsFinishedAfterAKill(t *testing.T) {
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
			eventually(t, "the supervisor is gone", func() bool { // one without a task may go by itself
				for _, pid := range h.supervisors() {
					unix.Kill(pid, unix.SIGKILL)
				}
				return len(h.supervisors()) == 0
			})
			// the state has its new id, its directory has not
			next := again(st, 1)
			from := h.store.TaskDir(st.ID)
			must(t, h.store.Rename(ran, next.ID))
			must(t, os.Rename(h.store.TaskDir(next.ID), from))
			second := h.client()
			if got := h.launch(second, again(st, 1)); got.ID != next.ID || got.Identity != ran.Identity {
				t.Errorf("got %+v", got)
			}
			end()
			if e := h.wait(second, next.ID); e.Code != 7 || e.Lost && !ended {
				t.Errorf("it ended by %+v", e)
			}
			if n := begun(); n != 1 {
				t.Errorf("it was started %d times", n)
			}
			if out := h.output(st, "stdout"); out != "first\nlast\n" {
				t.Errorf("output %q", out)
			}
			h.destroy(second, next.ID)
		})
	}
}

func TestTakeUp_TakesAnExitThatIsBeingRecorded(t *testing.T) {
	h := newHost(t, withoutCgroup)
	first, second := h.client(), h.client()
	for i := range 40 { // it ends about when it is taken up
		lines := filepath.Join(h.dir, "lines")
		st := h.shell(fmt.Sprintf("echo x >> %s; sleep 0.00%d; exit 7", lines, i%10),
			func(st *task.State) { st.Request = "the same" })
		h.launch(first, st)
		next := again(st, 1)
		h.launch(second, next)
		if e := h.wait(second, next.ID); e.Code != 7 || e.Lost {
			t.Errorf("it ended by %+v", e)
		}
		if e := h.store.LoadExit(next.ID); e == nil || e.Code != 7 {
			t.Errorf("on disk it ended by %+v", e)
		}
		first.Forget(st.ID)
		h.destroy(second, next.ID)
		if b, _ := os.ReadFile(lines); len(b) != 2*(i+1) {
			t.Fatalf("after %d tasks %q", i+1, b)
		}
	}
	if left := tree(filepath.Join(h.store.Dir, "tasks")); len(left) > 1 {
		t.Errorf("left behind: %v", left)
	}
}
