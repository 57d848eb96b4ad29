// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// frozen is a private disk that can be frozen: a process that writes to it then blocks until the thaw, and can't be
// killed.
type frozen struct {
	t   *testing.T
	dir string
	fd  *os.File
}

// FIFREEZE and FITHAW of linux/fs.h.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

func newFrozen(t *testing.T) *frozen {
	t.Helper()
	testsupport.NeedRoot(t) // to mount
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	must.NoError(t, os.WriteFile(image, nil, 0o600))
	must.NoError(t, os.Truncate(image, 64<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	f := &frozen{t: t, dir: filepath.Join(dir, "mnt")}
	must.NoError(t, os.Mkdir(f.dir, 0o755))
	if out, err := exec.Command("mount", "-o", "loop", image, f.dir).CombinedOutput(); err != nil {
		t.Skipf("no loop device here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		f.thaw()
		f.fd.Close()
		testsupport.Eventually(t, "the disk is unmounted", func() bool { return unix.Unmount(f.dir, 0) == nil })
	})
	var err error
	f.fd, err = os.Open(f.dir)
	must.NoError(t, err)
	must.NoError(t, os.MkdirAll(filepath.Join(f.dir, "alloc", "logs"), 0o777))
	return f
}

func (f *frozen) freeze() {
	f.t.Helper()
	must.NoError(f.t, unix.IoctlSetInt(int(f.fd.Fd()), fiFreeze, 0))
}

func (f *frozen) thaw() {
	err := unix.IoctlSetInt(int(f.fd.Fd()), fiThaw, 0)
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it is not frozen
		f.t.Errorf("thaw: %v", err)
	}
}

// counts returns a task that prints numbered lines until the file stop exists. It then prints the number of lines to
// stderr.
func (h *host) counts(stop string, change ...func(*task.State)) *task.State {
	const script = `i=0; while [ ! -e %s ]; do i=$((i+1)); echo line $i; sleep 0.01; done; echo $i >&2; exit 5`
	return h.shell(fmt.Sprintf(script, stop), change...)
}

// floods returns the script of a task like that of counts. It prints lines as fast as it can, but no more than fit into
// 1000 log files of 64 KiB.
func floods(stop string) string {
	return fmt.Sprintf(`i=0
		while [ ! -e %s ]; do
			n=0; while [ $n -lt 500 ]; do i=$((i+1)); n=$((n+1)); echo line $i; done
			[ $i -lt 1000000 ] || sleep 0.1
		done
		echo $i >&2; exit 5`, stop)
}

// counted checks that the output of counts or floods contains each line exactly once, in order.
func (h *host) counted(st *task.State) {
	h.t.Helper()
	var out, count string
	testsupport.Eventually(h.t, "the number of lines is written", func() bool {
		count = strings.TrimSpace(h.output(st, "stderr"))
		return count != ""
	})
	lines, err := strconv.Atoi(count)
	must.NoError(h.t, err)
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	testsupport.Eventually(h.t, "all lines are written", func() bool {
		out = h.output(st, "stdout")
		return len(out) >= want.Len()
	})
	if out != want.String() {
		h.t.Errorf("the output of %d lines has %d bytes, want %d", lines, len(out), want.Len())
	}
}

// endCounting ends the tasks of counts or floods with this file stop, and checks their exits and output.
func (h *host) endCounting(c *Client, stop string, counting ...*task.State) {
	h.t.Helper()
	must.NoError(h.t, os.WriteFile(stop, nil, 0o600))
	for _, st := range counting {
		if e := h.wait(c, st.ID); e.Code != 5 || e.Lost {
			h.t.Errorf("exit %+v", e)
		}
		h.counted(st)
		h.destroy(c, st.ID)
	}
}

// others checks that tasks elsewhere are not delayed by a hung file system: new tasks can start, write output and end,
// and the output of running tasks goes on.
func (h *host) others(c *Client, running []*task.State) {
	h.t.Helper()
	for i := range 10 {
		st := h.launch(c, h.shell(fmt.Sprint("echo hello; exit ", i)))
		if e := h.wait(c, st.ID); e.Code != i || e.Lost || h.output(st, "stdout") != "hello\n" {
			h.t.Errorf("another task: exit %+v, output %q", e, h.output(st, "stdout"))
		}
		h.destroy(c, st.ID)
	}
	for _, st := range running {
		before := len(h.output(st, "stdout"))
		testsupport.Eventually(h.t, "another task's output goes on", func() bool {
			return len(h.output(st, "stdout")) > before
		})
	}
}

func (h *host) hasEvent(id, text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		if e.ID == id && strings.Contains(e.Message, text) {
			return true
		}
	}
	return false
}

func TestOutput_FrozenDirectoryDelaysNoOtherTask(t *testing.T) {
	testsupport.Long(t, "waits for timeouts")
	for name, fault := range map[string]func(h *host){
		"no other fault":    func(*host) {},
		"supervisor killed": func(h *host) { h.kill(h.supervisor(), unix.SIGKILL) },
		"collector killed":  func(h *host) { must.NoError(h.t, unix.Kill(h.collector(), unix.SIGKILL)) },
		"both killed": func(h *host) {
			must.NoError(h.t, unix.Kill(h.collector(), unix.SIGKILL))
			h.kill(h.supervisor(), unix.SIGKILL)
		},
		"supervisor killed twice": func(h *host) {
			h.kill(h.supervisor(), unix.SIGKILL)
			testsupport.Eventually(h.t, "another", func() bool { return len(h.supervisors()) == 1 })
			h.kill(h.supervisor(), unix.SIGKILL)
		},
		"collector stopped": func(h *host) { must.NoError(h.t, unix.Kill(h.collector(), unix.SIGSTOP)) },
	} {
		t.Run(name, func(t *testing.T) {
			disk := newFrozen(t)
			h := newHost(t, withCgroup)
			c := h.client()
			stop := filepath.Join(h.dir, "stop")
			hung := h.launch(c, h.counts(stop, func(st *task.State) { st.Output.AllocDir = disk.dir }))
			var running []*task.State
			for range 3 {
				running = append(running, h.launch(c, h.counts(stop)))
			}
			h.waitOutput(hung, "line 5\n")
			disk.freeze()
			testsupport.Eventually(t, "the task gets an event", func() bool { return h.hasEvent(hung.ID, "does not respond") })
			fault(h)
			h.others(c, running)
			must.NoError(t, os.WriteFile(stop, nil, 0o600))
			for _, st := range append(running, hung) { // the hung task ends, too: its pipe is not full
				h.ends(c, st.ID, task.Exit{Code: 5})
			}
			for _, st := range running {
				h.counted(st)
				h.destroy(c, st.ID)
			}
			h.destroy(c, hung.ID) // this does not wait for the disk
			disk.thaw()
			h.counted(hung)
		})
	}
}

func TestOutput_HungDirectoryDelaysNoOtherTask(t *testing.T) {
	testsupport.Long(t, "waits for timeouts")
	h := newHost(t, withCgroup)
	c := h.client()
	stop := filepath.Join(h.dir, "stop")
	running := []*task.State{h.launch(c, h.counts(stop))}
	hung := h.shell("echo never", func(st *task.State) { st.Output.AllocDir = testsupport.HungDir(t) })
	failed := make(chan error, 1)
	go func() {
		_, err := c.Launch(ctx(t), hung)
		failed <- err
	}()
	h.others(c, running)
	test.ErrorContains(t, <-failed, "log directory does not respond",
		test.Sprint("the task whose log directory hangs"))
	h.endCounting(c, stop, running...)
	h.destroy(c, hung.ID)
}

func TestSupervisor_IsReplacedWhenItDoesNotAnswer(t *testing.T) {
	testsupport.Long(t, "waits for timeouts")
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client(impatient)
		stop := filepath.Join(h.dir, "stop")
		running := []*task.State{h.launch(c, h.counts(stop)), h.launch(c, h.counts(stop))}
		stopped := h.supervisor()
		must.NoError(t, unix.Kill(stopped, unix.SIGSTOP))
		h.others(c, running)
		if unix.Kill(stopped, 0) == nil && runs(mustIdentify(t, stopped)) {
			t.Error("the supervisor that does not answer still runs")
		}
		h.endCounting(c, stop, running...)
	})
}

// impatient shortens the helloTime of a client, so that it soon replaces a supervisor that does not answer.
func impatient(cfg *Config) { cfg.helloTime = 2 * time.Second }

func mustIdentify(t *testing.T, pid int) task.Identity {
	id, err := task.Identify(pid)
	must.NoError(t, err)
	return id
}

// A stopped supervisor is replaced, and the exit of its task reported, even if no call is in progress.
func TestExit_IsReportedWhenTheSupervisorIsStopped(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client(impatient)
	stop := filepath.Join(h.dir, "stop")
	st := h.launch(c, h.counts(stop))
	must.NoError(t, unix.Kill(h.supervisor(), unix.SIGSTOP))
	h.endCounting(c, stop, st)
}

// A new plugin must replace a supervisor that was stopped before the plugin started.
func TestClient_RecoversTasksOfAStoppedSupervisor(t *testing.T) {
	h := newHost(t, withCgroup)
	first := h.plugin()
	stop := filepath.Join(h.dir, "stop")
	st := first.launch(h.counts(stop))
	must.NoError(t, unix.Kill(h.supervisor(), unix.SIGSTOP))
	first.kill()
	c := h.client(impatient)
	status, err := c.Adopt(ctx(t), st)
	must.NoError(t, err)
	test.True(t, status.Running, test.Sprintf("status %+v", status))
	h.endCounting(c, stop, st)
}

func TestOutput_IsCompleteWhenTheCollectorIsKilled(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client()
	stop := filepath.Join(h.dir, "stop")
	st := h.launch(c, h.shell(floods(stop), func(st *task.State) {
		st.Output.MaxFileSize, st.Output.MaxFiles = 64<<10, 1000
	}))
	for range 10 {
		time.Sleep(20 * time.Millisecond) // so that the task writes some lines
		h.kill(h.collector(), unix.SIGKILL)
	}
	h.collector()
	h.endCounting(c, stop, st)
}

// A supervisor that had no free descriptor (EMFILE) must later accept connections again.
func TestSupervisor_ServesAgainAfterItRanOutOfDescriptors(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client()
	st := h.launch(c, h.shell("exec sleep 1000"))
	pid := h.supervisor()
	var before unix.Rlimit
	must.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before))
	must.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}, nil)) // no new descriptor
	late := h.client()
	adopted := make(chan error, 1)
	go func() {
		_, err := late.Adopt(ctx(t), st)
		adopted <- err
	}()
	time.Sleep(300 * time.Millisecond) // so that accept(2) fails in the meantime
	must.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil))
	test.NoError(t, <-adopted, test.Sprint("a client that connected while no descriptor was free"))
	test.Eq(t, pid, h.supervisor(), test.Sprint("the supervisor was replaced"))
	h.destroy(c, st.ID)
}
