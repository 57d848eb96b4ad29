// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

var smallDir string

// small builds the supervisor's own binary, which is not the same build as the test binary.
var small = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "outrider-small-")
	if err != nil {
		return "", err
	}
	smallDir = dir
	path := filepath.Join(dir, "outrider-supervisor")
	cmd := exec.Command("go", "build", "-o", path, "../cmd/outrider-supervisor")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// startOld starts a supervisor of an older build, which stays until it is upgraded.
func (h *host) startOld() {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		cmd := h.tryOld()
		if h.keep() {
			go cmd.Wait()
			return
		}
		// this idle supervisor is ending: wait until it has removed its files before starting the next one
		kill := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
	}
	h.t.Fatal("no old supervisor kept running")
}

func (h *host) tryOld() *exec.Cmd {
	h.t.Helper()
	path, err := small()
	must.NoError(h.t, err)
	o := options{Dir: h.store.Dir, Build: "old", Idle: h.idle, Leaf: h.leaf}
	if h.share != "" {
		must.NoError(h.t, h.leaf.Create(noLimits))
	}
	r, w, err := os.Pipe()
	must.NoError(h.t, err)
	defer r.Close()
	cmd := exec.Command(path)
	cmd.Args = o.arguments()
	cmd.Env, err = o.environment()
	must.NoError(h.t, err)
	cmd.ExtraFiles = []*os.File{w}
	cmd.Stderr = os.Stderr
	must.NoError(h.t, cmd.Start())
	w.Close()
	must.NoError(h.t, h.leaf.Join(cmd.Process.Pid))
	status, _ := bufio.NewReader(r).ReadString('\n')
	if status != "ready\n" && status != "busy\n" { // "busy": another supervisor is about to end
		h.t.Fatalf("the old supervisor reported %q", status)
	}
	return cmd
}

// old returns a client that does not upgrade the supervisor.
func (h *host) old() *Client {
	c := h.client()
	c.settled = true
	return c
}

func TestUpgrade_KeepsTheTasks(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		h.startOld()
		pid := h.supervisor()
		first := h.old()
		file := filepath.Join(h.dir, "go")
		var tasks []*task.State
		for i := range 10 {
			tasks = append(tasks, h.launch(first, h.shell(waits(file, fmt.Sprint("exit ", i)))))
		}
		talker := h.launch(first, h.shell(floods(file), func(st *task.State) {
			st.Output.MaxFileSize, st.Output.MaxFiles = 64<<10, 1000
		}))
		ended := h.launch(first, h.shell("exit 44"))
		h.wait(first, ended.ID)
		h.waitOutput(talker, "line 100\n")
		fds := count(t, pid, "fd")

		var logged []string
		second := h.client(func(c *Config) {
			c.Log = func(format string, args ...any) {
				h.mu.Lock()
				defer h.mu.Unlock()
				logged = append(logged, fmt.Sprintf(format, args...))
			}
		})
		if _, err := second.Adopt(ctx(t), tasks[0]); err != nil { // like a plugin that has just started
			t.Error(err)
		}
		must.Eq(t, buildID(), second.buildOf(t), must.Sprint("the supervisor's build"))
		h.mu.Lock()
		must.SliceLen(t, 1, logged)
		test.StrHasPrefix(t, fmt.Sprintf("replaced the supervisor of another version (pid %d, "+
			"build old)", pid), logged[0])
		h.mu.Unlock()
		test.Eq(t, pid, h.supervisor(), test.Sprint("its pid changed"))
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		test.StrNotContains(t, exe, "outrider-small", test.Sprint("it still runs the old binary"))
		for _, c := range []*Client{first, second} { // both reconnect
			if stat, err := c.Adopt(ctx(t), ended); err != nil || stat.Exit == nil || stat.Exit.Code != 44 {
				t.Errorf("a task that had ended: %+v, %v", stat, err)
			}
		}
		testsupport.Eventually(t, "it has no more descriptors than before", func() bool {
			return count(t, pid, "fd") <= fds+1
		})
		must.NoError(t, os.WriteFile(file, nil, 0o600))
		for i, st := range tasks {
			h.ends(first, st.ID, task.Exit{Code: i}, i)
			test.Eq(t, "first\nlast\n", h.output(st, "stdout"), test.Sprintf("task %d: output", i))
			h.destroy(first, st.ID)
		}
		h.wait(first, talker.ID)
		lines := strings.Split(h.output(talker, "stdout"), "\n")
		for i, line := range lines[:len(lines)-1] {
			must.Eq(t, fmt.Sprint("line ", i+1), line, must.Sprintf("line %d of the output", i+1))
		}
		n := strings.TrimSpace(h.output(talker, "stderr"))
		test.Eq(t, fmt.Sprint(len(lines)-1), n, test.Sprintf("it wrote %s lines, %d arrived", n, len(lines)-1))
		h.destroy(first, talker.ID)
		h.destroy(first, ended.ID)
	})
}

func (c *Client) buildOf(t *testing.T) string {
	t.Helper()
	r, err := c.call(ctx(t), &request{Op: opHello})
	must.NoError(t, err)
	return r.Hello.Build
}

func TestUpgrade_KeepsAnExitExact(t *testing.T) {
	h := newHost(t, withCgroup)
	for round := range 6 {
		h.startOld()
		first := h.old()
		var tasks []*task.State
		for i := range 12 {
			tasks = append(tasks, h.launch(first, h.shell(fmt.Sprintf("sleep 0.0%d; exit %d", 10+i*3, i+1))))
		}
		time.Sleep(time.Duration(round) * 3 * time.Millisecond)
		second := h.client()
		second.buildOf(t)
		for i, st := range tasks {
			h.ends(first, st.ID, task.Exit{Code: i + 1}, i)
			h.destroy(first, st.ID)
		}
		first.Close()
		second.Close()
		testsupport.Eventually(t, "the supervisor ends", func() bool { return len(h.supervisors()) == 0 })
	}
}

func TestUpgrade_DoesNotWaitForAHungLaunch(t *testing.T) {
	h := newHost(t, withCgroup)
	dir := testsupport.HungDir(t)
	h.startOld()
	first := h.old()
	st := h.launch(first, h.shell("echo ready; exec sleep 1000"))
	hung := h.shell("", func(st *task.State) { st.Command.Path = dir + "/prog" })
	failed := make(chan error)
	go func() {
		_, err := first.Launch(ctx(t), hung)
		failed <- err
	}()
	h.waitLauncher("launch:exec")
	second := h.client() // this client cannot upgrade the supervisor during the hung launch
	test.Eq(t, "old", second.buildOf(t), test.Sprint("the supervisor's build"))
	_, err := second.Adopt(ctx(t), st)
	test.NoError(t, err)
	h.endHung(hung)
	test.Error(t, <-failed, test.Sprint("the hung launch succeeded"))
	h.destroy(second, st.ID)
}

func TestUpgrade_ToAnInvalidBinaryChangesNothing(t *testing.T) {
	h := newHost(t, withoutCgroup)
	c := h.client()
	st := h.launch(c, h.shell("exec sleep 1000"))
	pid := h.supervisor()
	f, err := os.Open("/etc/passwd")
	must.NoError(t, err)
	defer f.Close()
	l, err := c.wire.Connect(ctx(t))
	must.NoError(t, err)
	if _, err = roundTrip(context.Background(), l, &request{Op: opUpgrade, Build: "x"}, f); err == nil || errors.Is(err,
		wire.ErrLost) {
		t.Errorf("got %v", err)
	}
	must.Eq(t, pid, h.supervisor(), must.Sprint("the supervisor was replaced"))
	test.Nil(t, c.Exit(st.ID), test.Sprint("the task ended"))
	h.launch(h.client(), h.shell("exit 0")) // by a client that connects after the failed upgrade
	h.destroy(c, st.ID)
	for _, st := range h.states {
		h.destroy(c, st.ID)
	}
}
