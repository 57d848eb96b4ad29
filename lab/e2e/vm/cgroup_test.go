// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
	"github.com/outrider-dev/outrider/lab/vm"
)

// TestCore_PassesOnCgroupV2 runs the core's tests of cgroups, mounts and devices on a machine without cgroup v1, as an
// unrestricted root. It skips tests of v1, and tests that take too long on an emulated processor.
func TestCore_PassesOnCgroupV2(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel()
	v := vm.New(t, vm.Options{})
	for _, p := range []struct {
		name  string
		flags []string
	}{
		{"cgroup", []string{"-test.skip=V1|TestDetect_SeesRealMounts|TestLeaf_CanBeJoined|TestRemove_KeepsAnOperators"}},
		{"launch", []string{"-test.skip=CgroupV1|AThousand|ThatEndsImmediately|" +
			"IsNotBoundByTheProgramsLimits|DelaysOnlyOneStart"}},
		{"supervisor", []string{"-test.run=^(TestExit_IsReported|TestSignal_ReachesTheProcessesOfTheKillMode|" +
			"TestKill_EndsDaemonsOfTheTask|TestKill_EndsATreeThatKeepsForking|TestTask_SurvivesItsPlugin|" +
			"TestSession_EndsWith.*|TestDestroy_IsIdempotent.*)$/in_a_cgroup"}},
		{"driver", []string{"-test.run=OOM|Memory|Limits|Stats|Devices|Isolation|Seccomp|" +
			"TestLifecycle_ReportsExitCodes|StopTask_KillsAtTheTimeout"}},
	} {
		t.Run(p.name, func(t *testing.T) {
			flags := append([]string{"-test.short"}, p.flags...)
			v.Test(t, "github.com/outrider-dev/outrider/internal/core/"+p.name, flags...)
		})
	}
}

const limits = `cgroup=$(cut -d : -f 3 /proc/self/cgroup)
for file in memory.max pids.max; do echo "$file is $(cat /sys/fs/cgroup$cgroup/$file)"; done`

// TestRemote_LimitsHoldOnCgroupV2 checks the limits of tasks on a host with only cgroup v2. No agent has made Nomad's
// slice there, so the supervisor of the first connection makes it. The second task uses a new connection.
func TestRemote_LimitsHoldOnCgroupV2(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel()
	server, err := sshd.Write(t.TempDir(), 2222) // the VM can read this directory
	if errors.Is(err, sshd.ErrMissing) {
		t.Skip(err)
	}
	must.NoError(t, err)
	h := newHost(t)
	h.boot()
	h.shell("setsid " + strings.Join(server.Args, " ") + " >sshd.log 2>&1 </dev/null &")
	c := h.runAgent(map[string]agent.Plugin{
		"remote": {Config: server.Endpoint("box", vm.DiskMount+"/host", "root")},
	})
	for _, name := range []string{"first", "second"} {
		job, task := nomadtest.Job(name, "remote", nomadtest.Shell(limits))
		task.SetConfig("endpoint", "box").SetConfig("pids_limit", 50).
			SetConfig("on_drain", "stop").SetConfig("on_lost", "restart")
		id := runs(t, c, job, api.AllocClientStatusComplete)
		h.says(id, "memory.max is 33554432\npids.max is 50")
		h.shell("kill -9 $(pidof nomad-driver-remote)") // the next task's plugin makes a new connection
	}
	h.run(nil, h.ctl, "close", agentDir)
}
