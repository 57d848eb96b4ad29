// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// proc is a process. It counts as ended once it is a zombie and no thread of it runs.
type proc struct {
	pid    int
	parent int
	start  uint64 // the start time, which differs if the PID is reused
	args   []string
}

func readProc(pid int) (proc, error) {
	st, err := task.ReadStat(pid)
	if err != nil || st.Zombie {
		return proc{}, errors.Join(fs.ErrNotExist, err)
	}
	return procOf(st), nil
}

func procOf(st task.Stat) proc {
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", st.PID))
	args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	return proc{pid: st.PID, parent: st.Parent, start: st.Start, args: args}
}

func (p proc) alive() bool {
	now, err := readProc(p.pid)
	return err == nil && now.start == p.start
}

func (p proc) kill(t testing.TB, sig syscall.Signal) {
	t.Helper()
	must.NoError(t, unix.Kill(p.pid, sig), must.Sprintf("failed to send %v to %q", sig, p.args))
}

// end kills the process and waits until it has ended.
func (p proc) end(t testing.TB) {
	t.Helper()
	p.kill(t, unix.SIGKILL)
	testsupport.Eventually(t, fmt.Sprintf("the end of %q", p.args), func() bool { return !p.alive() })
}

// pause stops a process and waits until no thread of it runs. resume continues the process, and may be called twice.
func (p proc) pause(t testing.TB) (resume func()) {
	t.Helper()
	p.kill(t, unix.SIGSTOP)
	testsupport.Within(t, time.Minute, func() error { // one thread gets the signal, and then stops the others
		threads, err := procfs.AllThreads(p.pid)
		for _, thread := range threads {
			st, err := thread.Stat() // fails if the thread has ended
			if err == nil && st.State != "T" {
				return fmt.Errorf("a thread of %q is still in state %s", p.args, st.State)
			}
		}
		return err
	})
	return func() {
		if p.alive() {
			unix.Kill(p.pid, unix.SIGCONT)
		}
	}
}

// allProcs returns the processes of this machine.
func allProcs() (all []proc) {
	table, _ := task.Processes()
	for _, st := range table {
		if !st.Zombie {
			all = append(all, procOf(st))
		}
	}
	return all
}

// processes returns the processes of the agent and of its tasks. Most have the agent's mark in their environment. The
// supervisor, collector and shim do not inherit the mark. Tasks on a remote host have a directory below state.
func (n *node) processes() []proc {
	mark, onHost := []byte("OUTRIDER_LAB_DIR="+n.dir+"\x00"), []byte("NOMAD_ALLOC_DIR="+n.state+"/allocs/")
	var found []proc
	for _, p := range allProcs() {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		if bytes.Contains(env, mark) || bytes.Contains(env, onHost) || n.isSupervisor(p) || n.isCollector(p) || n.isShim(p) {
			found = append(found, p)
		}
	}
	return found
}

func (n *node) find(what func(proc) bool) []proc {
	var found []proc
	for _, p := range n.processes() {
		if what(p) {
			found = append(found, p)
		}
	}
	return found
}

// one waits until exactly one process of a kind runs, and returns it.
func (n *node) one(t testing.TB, kind string, is func(proc) bool) proc {
	t.Helper()
	var p proc
	testsupport.Within(t, time.Minute, func() error {
		found := n.find(is)
		if len(found) != 1 {
			return fmt.Errorf("found %d processes of the kind %s, want 1: %v", len(found), kind, found)
		}
		p = found[0]
		return nil
	})
	return p
}

func (n *node) plugin(t testing.TB) proc { t.Helper(); return n.one(t, "plugin", n.isPlugin) }

// another waits for the process that replaces old, a killed one of the same kind. Call it before you start a task:
// until Nomad notices the end of a plugin, it fails each start with "failed creating runner".
func (n *node) another(t testing.TB, is func(proc) bool, old proc) (next proc) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		found := n.find(is)
		if len(found) != 1 || found[0].pid == old.pid {
			return fmt.Errorf("nothing replaces %q: %v", old.args, found)
		}
		next = found[0]
		return nil
	})
	return next
}

func (n *node) supervisor(t testing.TB) proc {
	t.Helper()
	return n.one(t, "supervisor", n.isSupervisor)
}
func (n *node) process(t testing.TB) proc { t.Helper(); return n.one(t, "agent", n.isAgent) }

// statusOf returns a process's status (proc_pid_status(5)), or the zero value if the process has ended.
func statusOf(pid int) (status procfs.ProcStatus) {
	p, err := procfs.NewProc(pid)
	if err == nil {
		status, _ = p.NewStatus()
	}
	return status
}

func descriptors(pid int) int {
	e, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(e)
}

// cgroups lists the cgroups of all hierarchies for whose name accept returns true.
func cgroups(accept func(name string) bool) []string {
	var found []string
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && accept(e.Name()) {
			found = append(found, "cgroup "+path)
		}
		return nil
	})
	return found
}

// taskCgroups lists the cgroups of the agent's allocations.
func (n *node) taskCgroups() []string {
	entries, _ := os.ReadDir(filepath.Join(n.DataDir(), "alloc"))
	ids := map[string]bool{}
	for _, e := range entries {
		ids[e.Name()] = true
	}
	return cgroups(func(name string) bool {
		alloc, _, ok := strings.Cut(name, ".")
		return ok && ids[alloc]
	})
}

// leaves lists the cgroups of the agent's supervisor.
func (n *node) leaves() []string {
	id, _, _ := strings.Cut(n.id(), "-")
	if id == "" {
		return nil
	}
	return cgroups(func(name string) bool { return strings.HasPrefix(name, "outrider-"+n.driver+"-"+id) })
}

// stateOf waits until task.json of an allocation's task has a PID, and returns the file's content.
func (n *node) stateOf(t testing.TB, allocID string) (st task.State) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		for _, dir := range n.taskDirs() {
			b, err := os.ReadFile(filepath.Join(dir, "task.json"))
			if err != nil {
				continue
			}
			st = task.State{}
			if json.Unmarshal(b, &st) == nil && strings.HasPrefix(st.ID, allocID+"/") && st.Identity.PID != 0 {
				return nil
			}
		}
		return errors.New("no task.json of allocation " + allocID)
	})
	return st
}
