// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
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
		{"cgroup", []string{"-test.skip=V1|TestDetect_OnThisMachine|TestLeaf_IsJoined|TestRemove_LeavesAnOperators"}},
		{"launch", []string{"-test.skip=CgroupV1|AThousand|ThatEndsAtOnce|" +
			"IsNotBoundByTheProgramsLimits|DelaysOneStart|OnAnyThread"}},
		{"supervisor", []string{"-test.run=^(TestExit_IsReported|TestSignal_ReachesTheProcessesOfItsMode|" +
			"TestKill_EndsDaemonsOfTheTask|TestKill_EndsATreeThatKeepsForking|TestTask_SurvivesItsPlugin|" +
			"TestSession_EndsWith.*|TestDestroy_IsIdempotent.*)$/in_a_cgroup"}},
		{"driver", []string{"-test.run=OOM|Memory|Stats|Devices|TestLifecycle_ReportsExitCodes|StopTask_KillsAtTheTimeout"}},
	} {
		t.Run(p.name, func(t *testing.T) {
			flags := append([]string{"-test.short"}, p.flags...)
			v.Test(t, "github.com/outrider-dev/outrider/internal/core/"+p.name, flags...)
		})
	}
}
