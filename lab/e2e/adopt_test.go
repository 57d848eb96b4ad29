// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// A program that unmaps its arguments needs no right for that.
func TestSupervisor_ServesDespiteTasksWithoutArguments(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeOptions{})
	trigger := filepath.Join(n.dir, "go")
	const crowd = 20
	j := job(t, conf{"command": counter, "args": []string{"-bare", "-every", "100ms", "-until", trigger, "-then",
		"exit:7"}}, small(crowd))
	n.submit(t, j)
	testsupport.Within(t, 2*time.Minute, func() error { return n.countRunning(*j.ID, crowd) })
	bare := func(p proc) bool { return len(p.args) == 1 && p.args[0] == "" }
	testsupport.Within(t, time.Minute, func() error {
		if found := n.processesBelow(n.supervisor(t).pid, bare); found != crowd {
			return fmt.Errorf("%d tasks have no arguments, want %d", found, crowd)
		}
		return nil
	})

	resume := n.process(t).pause(t)
	plugin := n.plugin(t)
	plugin.end(t)
	n.supervisor(t).end(t)
	resume()
	n.nextPlugin(t, plugin)
	test.Eq(t, "exit 3", n.submit(t, job(t, conf{"command": "/bin/sh", "args": []string{"-c", "exit 3"}})).ended(t),
		test.Sprint("another task: Nomad tells"))
	touch(t, trigger)
	list, _, err := n.Client().Jobs().Allocations(*j.ID, false, nil)
	must.NoError(t, err)
	for _, stub := range list {
		a := &alloc{n: n, id: stub.ID, job: *j.ID}
		// where only its parent can tell how a process ended, that was killed
		if got := a.ended(t); got != "exit 7" && (got != "lost" || n.tellsExit()) {
			t.Errorf("Nomad tells %q: %s", got, a.story())
		}
	}
}

// processesBelow counts the children of a process that are so.
func (n *node) processesBelow(parent int, is func(proc) bool) (count int) {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range entries {
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d", &pid); err != nil {
			continue
		}
		if p, err := readProc(pid); err == nil && p.parent == parent && is(p) {
			count++
		}
	}
	return count
}

// Nobody but the supervisor sees the tasks end, and then only its disk is left.
func TestExit_IsKeptOnFullStateDisk(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	n := newNode(t, nodeOptions{prepare: smallDisks})
	trigger := filepath.Join(n.dir, "go")
	want := []string{"exit 7", "exit 0", "signal 15"}
	var tasks []*alloc
	var dirs []string
	var procs []proc
	for _, then := range []string{"exit:7", "exit:0", "signal:15"} {
		a := n.start(t, conf{"command": counter, "args": []string{"-until", trigger, "-then", then}})
		a.says(t, "stdout", "line 20")
		dir, _ := n.stateOf(t, a.id)
		tasks, dirs, procs = append(tasks, a), append(dirs, dir), append(procs, a.pid(t))
	}
	free := fill(t, n.state)
	resume := n.process(t).pause(t)
	n.plugin(t).end(t)
	touch(t, trigger)
	for i, p := range procs {
		testsupport.Within(t, time.Minute, func() error {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", p.pid)); err == nil {
				return errors.New("it is not reaped")
			}
			return exitRecorded(dirs[i])
		})
	}
	n.supervisor(t).end(t)
	resume()
	for i, a := range tasks {
		if got := a.ended(t); got != want[i] {
			t.Errorf("Nomad tells %q, want %q: %s", got, want[i], a.story())
		}
	}
	free()
}
