// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// parentOfCgroups returns the name of a parent for the cgroups of one agent, and removes the parent after the test.
// Agents write the cores of their tasks to the parent, so two must not share one.
func parentOfCgroups(t *testing.T) string {
	name := "nomad-" + filepath.Base(mkdir(t))
	t.Cleanup(func() {
		dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
		for _, parent := range append(dirs, "/sys/fs/cgroup/"+name) {
			for _, dir := range []string{"share", "share.slice", "reserve", "reserve.slice", ""} {
				dir = filepath.Join(parent, dir)
				testsupport.Within(t, time.Minute, func() error {
					err := unix.Rmdir(dir)
					if err == unix.ENOENT {
						return nil
					}
					return err
				})
			}
		}
	})
	return name
}

// cores returns the processors that a process may use, such as "0-1", or "" if it does not exist.
func cores(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if !os.IsNotExist(err) {
		must.NoError(t, err)
	}
	_, list, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
	list, _, _ = strings.Cut(list, "\n")
	return list
}

func TestLimits_CoresAreTheTasksAlone(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t)
	needMemoryCgroup(t)
	all := cores(t, os.Getpid())
	if all != "0-1" {
		t.Skipf("needs two processors; here they are %q", all)
	}
	n := newNode(t, nodeOptions{config: fmt.Sprintf("client { cgroup_parent = %q }", parentOfCgroups(t))})

	shared := n.start(t, sh("exec sleep 1000"))
	test.Eq(t, all, cores(t, shared.pid(t).pid))
	reserved := n.start(t, sh("exec sleep 1000"), func(_ *api.Job, task *api.Task) {
		task.Resources.CPU, task.Resources.Cores = nil, new(1)
	})
	both := func() []string {
		both := []string{cores(t, shared.pid(t).pid), cores(t, reserved.pid(t).pid)}
		slices.Sort(both)
		return both
	}
	test.Eq(t, []string{"0", "1"}, both(), test.Sprint("cores of the two tasks"))
	_, out, _ := reserved.session(t, false, nil, nil, "grep", "Cpus_allowed_list", "/proc/self/status")
	test.Eq(t, "Cpus_allowed_list:\t"+cores(t, reserved.pid(t).pid)+"\n", out, test.Sprint("of alloc exec"))

	first := reserved.pid(t)
	must.NoError(t, n.Client().Allocations().Restart(reserved.stub(t), "main", nil))
	testsupport.Eventually(t, "the task is restarted", func() bool {
		p, err := readProc(n.stateOf(t, reserved.id).Identity.PID)
		return err == nil && p.pid != first.pid
	})
	test.Eq(t, []string{"0", "1"}, both(), test.Sprint("after a restart"))

	reserved.stop(t)
	testsupport.Eventually(t, "the other task has all cores", func() bool { return cores(t, shared.pid(t).pid) == all })
}
