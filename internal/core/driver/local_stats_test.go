// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/client/lib/cpustats"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// busy starts a process that uses the CPU almost only in user mode. The returned group is a plain directory, not a
// cgroup.
func busy(t *testing.T) (pid int, group cgroup.Group, dir string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "while :; do :; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // like a task
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	dir = t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600))
	return cmd.Process.Pid, cgroup.Group{Mode: cgroup.V2, Path: dir}, dir
}

func testSampler() *sampler { return newSampler(cpustats.Compute{TotalCompute: 4000, NumCores: 4}) }

func TestSampler_ReportsTicksOnlyIfTheCoresAreKnown(t *testing.T) {
	known := testSampler().measure(cgroup.Value{N: 1, Known: true}, cgroup.Value{}, cgroup.Value{})
	must.Eq(t, []string{"Percent", "Total Ticks"}, known.Measured)
	unknown := newSampler(cpustats.Compute{}).measure(cgroup.Value{N: 1, Known: true}, cgroup.Value{}, cgroup.Value{})
	must.Eq(t, []string{"Percent"}, unknown.Measured)
}

func TestSampler_DistinguishesUserFromSystemTime(t *testing.T) {
	_, group, dir := busy(t)
	s := testSampler()
	usec := uint64(0)
	const nearly = 0.99 // the figures may differ by 1 %, because they are read one after the other
	var last time.Time
	var lastTook time.Duration
	// repeat until a sample is precise: percentages refer to the time between two samples, which varies on a busy machine
	testsupport.Eventually(t, "both have been measured", func() bool {
		time.Sleep(50 * time.Millisecond)
		usec += 9_000_000
		must.NoError(t, os.WriteFile(filepath.Join(dir, "cpu.stat"),
			fmt.Appendf(nil, "usage_usec %d\nuser_usec %d\nsystem_usec %d\n", usec/9*10, usec, usec/9), 0o600))
		began := time.Now()
		u, err := s.sample(group, task.Identity{})
		must.NoError(t, err)
		took := time.Since(began)
		slow := lastTook+took > began.Sub(last)/100 // too imprecise for the tolerance
		last, lastTook = began, took
		if slow {
			return false
		}
		all := u.ResourceUsage.CpuStats
		must.False(t, all.UserMode < all.SystemMode, must.Sprintf("of the group: %+v", all))
		must.False(t, all.Percent < nearly*all.UserMode, must.Sprintf("of the group: %+v", all))
		return all.UserMode > 0
	})
}

func TestSampler_SumsProcessesWithoutACgroup(t *testing.T) {
	pid, _, _ := busy(t)
	id, err := task.Identify(pid)
	must.NoError(t, err)
	s := testSampler()
	testsupport.Eventually(t, "its use is seen", func() bool {
		u, err := s.sample(cgroup.Group{}, id)
		must.NoError(t, err)
		cpu, mem := u.ResourceUsage.CpuStats, u.ResourceUsage.MemoryStats
		time.Sleep(10 * time.Millisecond)
		return cpu.UserMode > cpu.SystemMode && cpu.Percent > 0 && mem.RSS > 0
	})
}
