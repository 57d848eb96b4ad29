// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

var noLimits cgroup.Limits

// waitLauncher waits until a launcher hangs in this step, and returns its pid.
func (h *host) waitLauncher(step string) (pid int) {
	h.t.Helper()
	testsupport.Eventually(h.t, "a launcher hangs in "+step, func() bool {
		table, _ := task.Processes()
		for _, st := range task.Descendants(table, h.supervisor()) {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", st.PID)); strings.TrimSpace(string(b)) == step {
				pid = st.PID
			}
		}
		return pid != 0
	})
	return pid
}

// endHung kills the launcher of a launch that hangs, as the supervisor does after its timeout.
func (h *host) endHung(st *task.State) {
	now, err := h.store.Load(st.ID)
	must.NoError(h.t, err)
	must.NoError(h.t, unix.Kill(now.Identity.PID, unix.SIGKILL))
}

func TestLaunch_HangDelaysNoOtherTask(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		dir := testsupport.HungDir(t)
		c := h.client()
		var talkers []*task.State
		for range 20 {
			talkers = append(talkers, h.launch(c, h.shell("while :; do echo tick; sleep 0.02; done")))
		}
		for step, change := range map[string]func(*task.State){
			"launch:exec":     func(st *task.State) { st.Command.Path = dir + "/prog" },
			"launch:work_dir": func(st *task.State) { st.Command.Dir = dir + "/dir" },
		} {
			hung := h.shell("exit 0", change)
			failed := make(chan error, 1)
			go func() {
				_, err := c.Launch(ctx(t), hung)
				failed <- err
			}()
			h.waitLauncher(step)
			for _, st := range talkers {
				before := len(h.output(st, "stdout"))
				testsupport.Eventually(t, "a task's output goes on", func() bool { return len(h.output(st, "stdout")) > before })
			}
			for i := range 20 {
				st := h.launch(c, h.shell(fmt.Sprint("echo hello; exit ", i)))
				h.ends(c, st.ID, task.Exit{Code: i}, step)
				test.Eq(t, "hello\n", h.output(st, "stdout"), test.Sprintf("%s: another task's output", step))
				h.destroy(c, st.ID)
			}
			select {
			case err := <-failed:
				t.Fatalf("%s: it did not hang: %v", step, err)
			default:
			}
			h.endHung(hung)
			test.Error(t, <-failed, test.Sprintf("%s: it started", step))
			h.destroy(c, hung.ID)
		}
		for _, st := range talkers {
			h.destroy(c, st.ID)
		}
	})
}

func TestAdoption_EndsTheLauncherOfAKilledSupervisor(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		dir := testsupport.HungDir(t)
		first := h.plugin()
		hung := h.shell("", func(st *task.State) { st.Command.Path = dir + "/prog" })
		must.NoError(t, json.NewEncoder(first.stdin).Encode(pluginOrder{Launch: hung}))
		testsupport.Eventually(t, "a supervisor runs", func() bool { return len(h.supervisors()) == 1 })
		pid := h.waitLauncher("launch:exec")
		sup := h.supervisor()
		first.kill() // first, because the plugin would start a supervisor and repeat the launch
		must.NoError(t, unix.Kill(sup, unix.SIGKILL))
		c := h.client()
		h.destroy(c, "anything") // starts a supervisor, which cleans up
		testsupport.Eventually(t, "the launcher is gone", func() bool { reapOrphans(); return unix.Kill(pid, 0) != nil })
		_, err := c.Adopt(ctx(t), &task.State{ID: hung.ID})
		test.ErrorIs(t, err, ErrUnknownTask, test.Sprint("adopt"))
		h.destroy(c, hung.ID)
	})
}

func TestClient_DelaysNoOtherClientWhenStopped(t *testing.T) {
	h := newHost(t, withCgroup)
	stopped := h.plugin()
	st := stopped.launch(h.shell("exec sleep 1000"))
	must.NoError(t, unix.Kill(stopped.cmd.Process.Pid, unix.SIGSTOP))
	// another client sends requests and never reads a reply
	deaf, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: h.store.Socket(), Net: "unix"})
	must.NoError(t, err)
	defer deaf.Close()
	ask, err := json.Marshal(&wire.Message[request]{Seq: 1, Body: request{Op: opHello}})
	must.NoError(t, err)
	for range 100 {
		if _, err := deaf.Write(bytes.Repeat(ask, 100)); err != nil {
			break // it was disconnected
		}
	}
	c := h.client()
	for i := range 20 {
		next := h.launch(c, h.shell(fmt.Sprint("exit ", i)))
		h.ends(c, next.ID, task.Exit{Code: i})
		h.destroy(c, next.ID)
	}
	must.NoError(t, unix.Kill(stopped.cmd.Process.Pid, unix.SIGCONT))
	// the stopped client gets all messages that were sent while it was stopped
	must.NoError(t, unix.Kill(st.Identity.PID, unix.SIGTERM))
	if a := stopped.do(pluginOrder{Wait: st.ID}); a.Exit == nil || a.Exit.Signal != int(unix.SIGTERM) {
		t.Errorf("got %+v", a)
	}
	h.destroy(c, st.ID)
}

func TestTask_DelaysNoOtherTaskWhenDebugged(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		st := h.launch(c, h.shell("exec sleep 1000"))
		attached, release := make(chan error), make(chan bool)
		go func() { // only the thread that attached is the tracer
			runtime.LockOSThread()
			defer close(attached)
			err := unix.PtraceSeize(st.Identity.PID)
			attached <- err
			<-release
			var ws unix.WaitStatus
			_, _ = unix.Wait4(st.Identity.PID, &ws, unix.WALL, nil)
		}()
		if err := <-attached; err != nil {
			close(release)
			t.Skipf("no process can be traced here: %v", err)
		}
		must.NoError(t, unix.Kill(st.Identity.PID, unix.SIGKILL)) // the kernel reports the death to the tracer first
		other := h.launch(c, h.shell("exit 3"))
		h.ends(c, other.ID, task.Exit{Code: 3})
		must.SliceEmpty(t, h.reported(st.ID), must.Sprint("reported before the debugger has detached"))
		close(release)
		<-attached
		h.ends(c, st.ID, task.Exit{Signal: int(unix.SIGKILL)})
		h.destroy(c, other.ID)
		h.destroy(c, st.ID)
	})
}

// session starts a command in a task, with a pipe for its output.
func (h *host) session(c *Client, id, script string) (<-chan *task.Exit, *os.File) {
	h.t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must.NoError(h.t, err)
	defer null.Close()
	r, w, err := os.Pipe()
	must.NoError(h.t, err)
	defer w.Close()
	h.mu.Lock()
	h.ids++
	name := fmt.Sprint("session", h.ids)
	h.mu.Unlock()
	ended, err := c.Exec(ctx(h.t), id, &ExecSpec{Session: name, Path: "/bin/sh", Args: []string{"-c", script}},
		[3]*os.File{null, w, w})
	must.NoError(h.t, err)
	return ended, r
}

func TestSession_EndsWithItsTaskOrItsClient(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		st := h.launch(c, h.shell("exec sleep 1000"))
		ended, out := h.session(c, st.ID, "echo hi; exit 6")
		if e := <-ended; e == nil || e.Code != 6 {
			t.Errorf("exit %+v", e)
		}
		b, _ := io.ReadAll(out)
		test.Eq(t, "hi\n", string(b), test.Sprintf("output %q", b))
		out.Close()

		m := testsupport.Mark()
		_, out = h.session(c, st.ID, h.background(m)+"exec sleep "+m)
		testsupport.WaitSleepers(t, m, 2)
		must.NoError(t, c.Kill(ctx(t), st.ID))
		testsupport.WaitSleepers(t, m, 0)
		out.Close()
		h.destroy(c, st.ID)

		st = h.launch(c, h.shell("exec sleep 1000"))
		other := h.client()
		ended, out = h.session(other, st.ID, "exec sleep "+m)
		testsupport.WaitSleepers(t, m, 1)
		other.Close()
		testsupport.WaitSleepers(t, m, 0)
		e, ok := <-ended
		test.False(t, ok, test.Sprintf("got %+v", e))
		out.Close()

		ended, out = h.session(c, st.ID, "exec sleep "+m)
		testsupport.WaitSleepers(t, m, 1)
		h.destroy(c, st.ID)
		<-ended
		out.Close()
		test.SliceEmpty(t, testsupport.Sleepers(m), test.Sprint("left behind"))
	})
}
