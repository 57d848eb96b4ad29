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

// ownCPUs is a shell of nodeOptions that gives an agent a hierarchy of cpusets of its own: each agent writes the cores of
// its tasks to the same two cgroups. (Nomad 1.11 does not use its option cgroup_parent.)
func ownCPUs(t *testing.T) string {
	const root = "/sys/fs/cgroup/cpuset"
	own := filepath.Join(root, filepath.Base(mkdir(t)))
	must.NoError(t, os.Mkdir(own, 0o755))
	t.Cleanup(func() {
		for _, dir := range []string{"nomad/share", "nomad/reserve", "nomad", ""} {
			dir = filepath.Join(own, dir)
			testsupport.Within(t, time.Minute, func() error {
				err := unix.Rmdir(dir)
				if err == unix.ENOENT {
					return nil
				}
				return err
			})
		}
	})
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(filepath.Join(own, file), text, 0o600))
	}
	return `exec unshare -m sh -c 'mount --bind ` + own + " " + root + `; exec "$@"' sh "$@"`
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
	if !testsupport.Exists("/sys/fs/cgroup/cpuset/cpuset.cpus") {
		t.Skip("needs cgroup v1")
	}
	n := newNode(t, nodeOptions{shell: ownCPUs(t)})

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
