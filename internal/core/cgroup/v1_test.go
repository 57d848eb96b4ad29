// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestV1Limits_AreWritten(t *testing.T) {
	zero := uint64(0)
	cases := []struct {
		name string
		l    Limits
		want map[string]string // controller/file -> content
	}{
		{"a soft and a hard limit", Limits{MemoryMax: 64 << 20, MemoryLow: 32 << 20, Swappiness: &zero},
			map[string]string{"memory/memory.limit_in_bytes": "67108864", "memory/memory.soft_limit_in_bytes": "33554432",
				"memory/memory.swappiness": "0"}},
		{"no hard limit", Limits{MemoryMax: -1}, map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712"}},
		{"cpu and pids", Limits{CPUShares: 500, CPUQuota: 2500, PidsMax: 17}, map[string]string{"cpu/cpu.shares": "500",
			"cpu/cpu.cfs_quota_us": "2500",
			"pids/pids.max":        "17"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := v1Task(t)
			must.NoError(t, g.Create(c.l))
			for name, want := range c.want {
				controller, file, _ := strings.Cut(name, "/")
				test.Eq(t, want, strings.TrimSpace(string(mustRead(t, filepath.Join(g.V1[controller], file)))),
					test.Sprint(name))
			}
		})
	}
}

func TestV1Create_RemovesItsGroupsAfterAnError(t *testing.T) {
	cases := []struct {
		name string
		l    Limits
		want string // a part of the message
	}{
		{"more processes than the kernel takes", Limits{PidsMax: 1 << 40}, "pids.max"},
		{"cores in a group of all tasks", Limits{Cpuset: "0"}, "other tasks share"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := v1Task(t)
			err := g.Create(c.l)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v", err)
			}
			for _, dir := range g.Owned {
				must.False(t, exists(dir), must.Sprintf("left behind: %s or its parent", dir))
				test.False(t, exists(filepath.Dir(dir)), test.Sprintf("left behind: %s or its parent", dir))
			}
		})
	}
	t.Run("a group that Nomad could not make", func(t *testing.T) {
		g := v1Task(t)
		must.NoError(t, os.Remove(g.V1["memory"]))
		err := g.Create(Limits{})
		must.ErrorIs(t, err, ErrUnavailable)
		test.StrContains(t, err.Error(), g.V1["memory"])
	})
}

func TestV1Limits_SetReservedCores(t *testing.T) {
	g := v1Task(t)
	share := g.V1["cpuset"]
	reserve := filepath.Join(filepath.Dir(share), "reserve")
	g.V1["cpuset"] = filepath.Join(reserve, filepath.Base(g.V1["cpu"]))
	for _, dir := range []string{reserve, g.V1["cpuset"]} {
		must.NoError(t, os.Mkdir(dir, 0o755))
		defer removeTree(dir)
		must.NoError(t, writeFile(filepath.Join(dir, "cpuset.mems"), "0"))
		if dir == reserve {
			must.NoError(t, writeFile(filepath.Join(dir, "cpuset.cpus"), "0"))
		}
	}
	must.NoError(t, g.Create(Limits{Cpuset: "0"}))
	cmd := start(t, g, "exec sleep 60")
	testsupport.Eventually(t, "the task runs on core 0 alone", func() bool {
		return strings.Contains(string(mustRead(t, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))),
			"Cpus_allowed_list:\t0\n")
	})
	must.NoError(t, g.Kill())
}

func TestV1Limits_IOHasItsOwnGroup(t *testing.T) {
	g := v1Task(t, IO)
	if !g.Has(IO) {
		t.Skip("needs the cgroup v1 hierarchy blkio")
	}
	disk := anyDisk(t)
	l := Limits{IOWeight: 5050, IOMax: []IOMax{{disk, 1 << 20, 2 << 20, 30, 40}}}
	want := map[string]string{
		"blkio.throttle.read_bps_device": disk + " 1048576", "blkio.throttle.write_bps_device": disk + " 2097152",
		"blkio.throttle.read_iops_device": disk + " 30", "blkio.throttle.write_iops_device": disk + " 40",
		"blkio.bfq.weight": "550",
	}
	if !exists(filepath.Join(Detect("").Mounts[blkio], "blkio.bfq.io_serviced")) { // the kernel has no BFQ
		l.IOWeight = 0
		delete(want, "blkio.bfq.weight")
	}
	must.NoError(t, g.Create(l))
	for file, value := range want {
		test.Eq(t, value, strings.TrimSpace(string(mustRead(t, filepath.Join(g.V1[blkio], file)))), test.Sprint(file))
	}
	cmd := start(t, g, "exec sleep 60")
	running(t, cmd, "sleep")
	groups := string(mustRead(t, fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid)))
	name := filepath.Base(g.V1[blkio])
	must.RegexMatch(t, regexp.MustCompile(`(?m):blkio:/.*/`+regexp.QuoteMeta(name)+`$`), groups)
}

// anyDisk returns the number of a disk of this machine.
func anyDisk(t *testing.T) string {
	t.Helper()
	numbers, err := filepath.Glob("/sys/block/*/dev")
	must.NoError(t, err)
	if len(numbers) == 0 {
		t.Skip("needs a disk")
	}
	return strings.TrimSpace(string(mustRead(t, numbers[0])))
}

func TestV1Create_PutsATaskInEveryGroup(t *testing.T) {
	g := v1Task(t)
	must.NoError(t, g.Create(Limits{MemoryMax: 64 << 20}))
	cmd := start(t, g, "exec sleep 60")
	pid := cmd.Process.Pid
	running(t, cmd, "sleep")
	self := string(mustRead(t, fmt.Sprintf("/proc/%d/cgroup", pid)))
	name := filepath.Base(g.V1["cpu"])
	for _, controller := range []string{"freezer", "memory", "cpu", "cpuacct", "pids"} {
		must.StrContains(t, self, controller+":", must.Sprintf("not in %s", controller))
		test.False(t, strings.Count(self, name) < 5, test.Sprintf("not in %s", controller))
	}
	if !strings.Contains(self, "cpuset:/"+filepath.Base(filepath.Dir(filepath.Dir(g.V1["cpuset"])))+"/share\n") &&
		!strings.Contains(self, "/share\n") {
		t.Errorf("not in the cpuset:\n%s", self)
	}
	if g.Unified != "" && !strings.Contains(self, "0::"+strings.TrimPrefix(g.Unified, "/sys/fs/cgroup/unified")+"\n") {
		t.Errorf("not in the cgroup2 hierarchy:\n%s", self)
	}
	pids, err := g.Procs()
	must.NoError(t, err, must.Sprintf("processes: %v, %v; want %d", pids, err, pid))
	test.SliceEqOp(t, []int{pid}, pids, test.Sprintf("processes: %v, %v; want %d", pids, err, pid))
	empty, err := g.Empty()
	must.NoError(t, err, must.Sprintf("empty: %v", empty))
	test.False(t, empty, test.Sprintf("empty: %v", empty))
	must.NoError(t, g.Signal(unix.SIGTERM))
	cmd.Wait()
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	test.Eq(t, syscall.SIGTERM, ws.Signal(), test.Sprintf("ended by %v", ws))
	testsupport.Eventually(t, "the group is empty", func() bool { empty, _ := g.Empty(); return empty })
}

func TestV1Stats_AreKnownAfterAnOOMKill(t *testing.T) {
	g := v1Task(t)
	must.NoError(t, g.Create(Limits{MemoryMax: 24 << 20}))
	before, err := g.OOMKills()
	must.NoError(t, err)
	cmd := start(t, g, "tail /dev/zero") // buffers an endless line, so it exceeds the limit
	cmd.Wait()
	if n, err := g.OOMKills(); err != nil || n != before+1 {
		t.Errorf("OOM kills: %d, then %d, %v", before, n, err)
	}
	s, err := g.Stats()
	must.NoError(t, err)
	for name, v := range map[string]Value{
		"cpu total": s.CPUTotal, "cpu user": s.CPUUser, "cpu system": s.CPUSystem, "rss": s.RSS, "cache": s.Cache,
		"usage": s.Usage, "peak": s.UsagePeak, "throttled periods": s.ThrottledPeriods, "throttled " +
			"time": s.ThrottledTime,
	} {
		test.True(t, v.Known, test.Sprintf("%s is not known", name))
	}
	must.NotEq(t, 0, s.CPUTotal.N, must.Sprintf("got %+v", s))
	must.False(t, s.CPUTotal.N > uint64(time.Minute), must.Sprintf("got %+v", s))
	must.False(t, s.UsagePeak.N < 20<<20, must.Sprintf("got %+v", s))
	test.False(t, s.UsagePeak.N > 24<<20, test.Sprintf("got %+v", s))
}

func TestV1Create_EndsAnEarlierRun(t *testing.T) {
	g := v1Task(t)
	must.NoError(t, g.Create(Limits{}))
	// a task with write access can make a sub-cgroup
	inner := filepath.Join(g.V1["memory"], "inner")
	must.NoError(t, os.Mkdir(inner, 0o755))
	old := start(t, g, "trap '' TERM; sleep 300 & wait")
	testsupport.Eventually(t, "the earlier run is running", func() bool { return countProcs(t, g) == 2 })
	must.NoError(t, writeFile(inner+"/cgroup.procs", strconv.Itoa(old.Process.Pid)))
	n := countProcs(t, g)
	test.Eq(t, 2, n, test.Sprintf("%d processes, want 2: one is in a group below", n))
	must.NoError(t, g.Create(Limits{}))
	if n := countProcs(t, g); n != 0 || exists(inner) {
		t.Errorf("%d processes are left, and the inner group exists: %v", n, exists(inner))
	}
	running(t, start(t, g, "exec sleep 60"), "sleep")
}

func TestV1Remove_IsIdempotentAndRefusesRunningProcesses(t *testing.T) {
	g := v1Task(t)
	must.NoError(t, g.Create(Limits{}))
	running(t, start(t, g, "exec sleep 60"), "sleep")
	test.ErrorIs(t, g.Remove(), unix.EBUSY, test.Sprint("removed under a living process"))
	n := countProcs(t, g)
	test.Eq(t, 1, n, test.Sprintf("%d processes", n))
	must.NoError(t, g.Kill())
	for range 2 {
		test.NoError(t, g.Remove())
	}
	test.NoError(t, g.Kill(), test.Sprint("kill of a removed group"))
	for _, controller := range []string{"freezer", "memory", "cpu", "cpuset"} {
		test.True(t, exists(g.V1[controller]), test.Sprintf("Nomad's %s group was removed", controller))
	}
}

func TestV1Create_RunsConcurrentlyWithRemove(t *testing.T) {
	g := v1Task(t)
	done := make(chan error)
	for i := range 8 {
		go func() {
			mine := Group{Mode: V1, V1: map[string]string{}}
			for _, dir := range g.Owned {
				mine.Owned = append(mine.Owned, dir+strconv.Itoa(i))
			}
			var errs []error
			for range 50 { // the first Create makes the common parent, and the last Remove removes it
				errs = append(errs, mine.Create(Limits{}), mine.Remove())
			}
			done <- errors.Join(errs...)
		}()
	}
	for range 8 {
		test.NoError(t, <-done)
	}
}

func TestRemove_KeepsAnOperatorsDirectory(t *testing.T) {
	g := v1Task(t)
	parent := filepath.Dir(g.V1["pids"])
	must.NoError(t, os.Mkdir(parent, 0o755))
	defer os.Remove(parent)
	must.NoError(t, g.Create(Limits{}))
	must.NoError(t, g.Remove())
	test.True(t, exists(parent), test.Sprint("removed a directory that we did not make"))
	must.NoError(t, os.Remove(parent))
}
