// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// ownCPUs returns a nodeOptions.shell that gives an agent its own cpuset hierarchy. Agents that share a hierarchy write
// their tasks' cores to the same two cgroups, since Nomad 1.11 does not use its option cgroup_parent.
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

func TestLimits_ReservedCoresAreExclusive(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t)
	needMemoryCgroup(t)
	all := []uint64{0, 1}
	if here := statusOf(os.Getpid()).CpusAllowedList; !slices.Equal(here, all) {
		t.Skipf("needs the processors 0 and 1, and no others; here they are %v", here)
	}
	if !testsupport.Exists("/sys/fs/cgroup/cpuset/cpuset.cpus") {
		t.Skip("needs cgroup v1")
	}
	n := newNode(t, nodeOptions{shell: ownCPUs(t)})

	shared := n.start(t, sh("exec sleep 1000"))
	cores := func(a *alloc) []uint64 { return statusOf(a.pid(t).pid).CpusAllowedList }
	test.Eq(t, all, cores(shared))
	reserved := n.start(t, sh("exec sleep 1000"), func(_ *api.Job, task *api.Task) {
		task.Resources.CPU, task.Resources.Cores = nil, new(1)
	})
	both := func() []uint64 { return slices.Sorted(slices.Values(slices.Concat(cores(shared), cores(reserved)))) }
	test.Eq(t, all, both(), test.Sprint("cores of the two tasks"))
	must.Len(t, 1, cores(reserved))
	_, out, _ := reserved.session(t, false, nil, nil, "grep", "Cpus_allowed_list", "/proc/self/status")
	test.Eq(t, fmt.Sprintf("Cpus_allowed_list:\t%d\n", cores(reserved)[0]), out, test.Sprint("cores of a session"))

	first := reserved.pid(t)
	must.NoError(t, n.Client().Allocations().Restart(reserved.stub(t), "main", nil))
	testsupport.Eventually(t, "the task is restarted", func() bool {
		p, err := readProc(n.stateOf(t, reserved.id).Identity.PID)
		return err == nil && p.pid != first.pid && slices.Equal(p.args, first.args) // not the launcher's arguments
	})
	test.Eq(t, all, both(), test.Sprint("after a restart"))

	reserved.stop(t)
	testsupport.Eventually(t, "the other task has all cores", func() bool { return slices.Equal(cores(shared), all) })
}
