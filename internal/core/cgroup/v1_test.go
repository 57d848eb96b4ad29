package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
		{"cpu and pids", Limits{CPUShares: 500, PidsMax: 17}, map[string]string{"cpu/cpu.shares": "500",
			"pids/pids.max": "17"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := v1Task(t)
			if err := g.Create(c.l); err != nil {
				t.Fatal(err)
			}
			for name, want := range c.want {
				controller, file, _ := strings.Cut(name, "/")
				if got := strings.TrimSpace(string(mustRead(t, filepath.Join(g.V1[controller], file)))); got != want {
					t.Errorf("%s: got %s, want %s", name, got, want)
				}
			}
		})
	}
}

func TestV1Create_LeavesNothingAfterAnError(t *testing.T) {
	cases := []struct {
		name string
		l    Limits
		want string // a part of the message
	}{
		{"more processes than the kernel takes", Limits{PidsMax: 1 << 40}, "pids.max"},
		{"cores in a group of all tasks", Limits{Cpuset: "0"}, "shared with other tasks"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := v1Task(t)
			err := g.Create(c.l)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v", err)
			}
			for _, dir := range g.Owned {
				if exists(dir) || exists(filepath.Dir(dir)) {
					t.Errorf("left behind: %s or its parent", dir)
				}
			}
		})
	}
	t.Run("a group that Nomad could not make", func(t *testing.T) {
		g := v1Task(t)
		if err := os.Remove(g.V1["memory"]); err != nil {
			t.Fatal(err)
		}
		if err := g.Create(Limits{}); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), g.V1["memory"]) {
			t.Errorf("got %v", err)
		}
	})
}

func TestV1Limits_SetReservedCores(t *testing.T) {
	g := v1Task(t)
	share := g.V1["cpuset"]
	reserve := filepath.Join(filepath.Dir(share), "reserve")
	g.V1["cpuset"] = filepath.Join(reserve, filepath.Base(g.V1["cpu"]))
	for _, dir := range []string{reserve, g.V1["cpuset"]} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer removeTree(dir)
		if err := writeFile(filepath.Join(dir, "cpuset.mems"), "0"); err != nil {
			t.Fatal(err)
		}
		if dir == reserve {
			if err := writeFile(filepath.Join(dir, "cpuset.cpus"), "0"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := g.Create(Limits{Cpuset: "0"}); err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, "exec sleep 60")
	eventually(t, "the task runs on core 0 alone", func() bool {
		return strings.Contains(string(mustRead(t, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))),
			"Cpus_allowed_list:\t0\n")
	})
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
}

func TestV1Create_PutsATaskInEveryGroup(t *testing.T) {
	g := v1Task(t)
	if err := g.Create(Limits{MemoryMax: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, "exec sleep 60")
	pid := cmd.Process.Pid
	running(t, cmd, "sleep")
	self := string(mustRead(t, fmt.Sprintf("/proc/%d/cgroup", pid)))
	name := filepath.Base(g.V1["cpu"])
	for _, controller := range []string{"freezer", "memory", "cpu", "cpuacct", "pids"} {
		if !strings.Contains(self, controller+":") || strings.Count(self, name) < 5 {
			t.Errorf("not in %s:\n%s", controller, self)
		}
	}
	if !strings.Contains(self, "cpuset:/"+filepath.Base(filepath.Dir(filepath.Dir(g.V1["cpuset"])))+"/share\n") &&
		!strings.Contains(self, "/share\n") {
		t.Errorf("not in the cpuset:\n%s", self)
	}
	if g.Unified != "" && !strings.Contains(self, "0::"+strings.TrimPrefix(g.Unified, "/sys/fs/cgroup/unified")+"\n") {
		t.Errorf("not in the cgroup2 hierarchy:\n%s", self)
	}
	if pids, err := g.Procs(); err != nil || !slices.Equal(pids, []int{pid}) {
		t.Errorf("processes: %v, %v; want %d", pids, err, pid)
	}
	if empty, err := g.Empty(); err != nil || empty {
		t.Errorf("empty: %v, %v", empty, err)
	}
	if err := g.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGTERM {
		t.Errorf("ended by %v", ws)
	}
	eventually(t, "the group is empty", func() bool { empty, _ := g.Empty(); return empty })
}

func TestV1Stats_AreReadWithOOMKills(t *testing.T) {
	g := v1Task(t)
	if err := g.Create(Limits{MemoryMax: 24 << 20}); err != nil {
		t.Fatal(err)
	}
	before, err := g.OOMKills()
	if err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, "tail /dev/zero") // keeps all of a line that never ends
	cmd.Wait()
	if n, err := g.OOMKills(); err != nil || n != before+1 {
		t.Errorf("OOM kills: %d, then %d, %v", before, n, err)
	}
	s, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]Value{
		"cpu total": s.CPUTotal, "cpu user": s.CPUUser, "cpu system": s.CPUSystem, "rss": s.RSS, "cache": s.Cache,
		"usage": s.Usage, "peak": s.UsagePeak, "pids": s.PIDs, "throttled periods": s.ThrottledPeriods, "throttled " +
			"time": s.ThrottledTime,
	} {
		if !v.Known {
			t.Errorf("%s is not known", name)
		}
	}
	if s.CPUTotal.N == 0 || s.CPUTotal.N > uint64(time.Minute) || s.UsagePeak.N < 20<<20 || s.UsagePeak.N > 24<<20 {
		t.Errorf("got %+v", s)
	}
}

func TestV1Create_EndsAnEarlierRun(t *testing.T) {
	g := v1Task(t)
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	// a task that may do so makes groups of its own
	inner := filepath.Join(g.V1["memory"], "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	old := start(t, g, "trap '' TERM; sleep 300 & wait")
	eventually(t, "the earlier run is there", func() bool { return countProcs(t, g) == 2 })
	if err := writeFile(inner+"/cgroup.procs", strconv.Itoa(old.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if n := countProcs(t, g); n != 2 {
		t.Errorf("%d processes, want 2: one is in a group below", n)
	}
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	if n := countProcs(t, g); n != 0 || exists(inner) {
		t.Errorf("%d processes, and the inner group is there: %v", n, exists(inner))
	}
	running(t, start(t, g, "exec sleep 60"), "sleep")
}

func TestV1Remove_IsIdempotentAndSparesTheLiving(t *testing.T) {
	g := v1Task(t)
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	running(t, start(t, g, "exec sleep 60"), "sleep")
	if err := g.Remove(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("removed under a living process: %v", err)
	}
	if n := countProcs(t, g); n != 1 {
		t.Errorf("%d processes", n)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}
	if err := g.Kill(); err != nil {
		t.Errorf("killing what is gone: %v", err)
	}
	for _, controller := range []string{"freezer", "memory", "cpu", "cpuset"} {
		if !exists(g.V1[controller]) {
			t.Errorf("Nomad's %s group was removed", controller)
		}
	}
}

func TestV1Create_AndRemoveConcurrently(t *testing.T) {
	g := v1Task(t)
	done := make(chan error)
	for i := range 8 {
		go func() {
			mine := Group{Mode: V1, V1: map[string]string{}}
			for _, dir := range g.Owned {
				mine.Owned = append(mine.Owned, dir+strconv.Itoa(i))
			}
			var errs []error
			for range 50 { // the common parent comes and goes with the last of them
				errs = append(errs, mine.Create(Limits{}), mine.Remove())
			}
			done <- errors.Join(errs...)
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestRemove_LeavesAnOperatorsParent(t *testing.T) {
	g := v1Task(t)
	parent := filepath.Dir(g.V1["pids"])
	if err := os.Mkdir(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(parent)
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	if !exists(parent) {
		t.Error("removed a directory that we did not make")
	}
	if err := os.Remove(parent); err != nil {
		t.Fatal(err)
	}
}
