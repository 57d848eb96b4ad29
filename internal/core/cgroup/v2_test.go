// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// v2Files contains the interface files of a scope as the kernel makes them.
var v2Files = map[string]string{
	"cgroup.procs": "", "cgroup.events": "populated 0\nfrozen " +
		"0\n", "cgroup.kill": "", "cgroup.freeze": "0\n", "cgroup.subtree_control": "",
	"memory.max": "", "memory.low": "", "cpu.weight": "", "cpu.max": "", "cpuset.cpus": "", "pids.max": "",
	"io.weight": "", "io.bfq.weight": "", "io.max": "",
	"cpu.stat": "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 9\nnr_throttled " +
		"4\nthrottled_usec 20\n",
	"memory.current":      "8192\n",
	"memory.peak":         "16384\n",
	"memory.swap.current": "4096\n",
	"memory.swap.max":     "",
	"memory.stat":         "anon 1024\nfile 2048\nkernel 512\n",
	"memory.events":       "low 0\nhigh 0\nmax 12\noom 2\noom_kill 3\noom_group_kill 0\n",
	"pids.current":        "5\n",
}

// v2Fixture returns a group of plain files, which store written values but do not react like the kernel's. change
// replaces the content of files; the content "-" removes a file.
func v2Fixture(t *testing.T, change map[string]string) Group {
	files := maps.Clone(v2Files)
	for name, content := range change {
		files[name] = content
		if content == "-" {
			delete(files, name)
		}
	}
	return Group{Mode: V2, Path: fixture(t, files), Controllers: []string{"memory", "cpu", "cpuset", "pids", "io"}}
}

func TestV2Limits_AreWritten(t *testing.T) {
	zero := uint64(0)
	cases := []struct {
		name string
		l    Limits
		want map[string]string
	}{
		{"a hard limit", Limits{MemoryMax: 256 << 20}, map[string]string{"memory.max": "268435456", "memory.low": ""}},
		{"a soft and a hard limit", Limits{MemoryMax: 256 << 20, MemoryLow: 64 << 20},
			map[string]string{"memory.max": "268435456", "memory.low": "67108864"}},
		{"a soft limit alone", Limits{MemoryMax: -1, MemoryLow: 64 << 20}, map[string]string{"memory.max": "max",
			"memory.low": "67108864"}},
		{"cpu, cores and pids", Limits{CPUShares: 1024, CPUQuota: 2500, Cpuset: "0-1", PidsMax: 99}, map[string]string{
			"cpu.weight":  "100",
			"cpu.max":     "2500 100000",
			"cpuset.cpus": "0-1", "pids.max": "99"}},
		{"swappiness has no file on v2", Limits{Swappiness: &zero},
			map[string]string{"memory.max": "", "memory.swap.max": ""}},
		{"no swap", Limits{MemoryMax: 256 << 20, SwapMax: &zero},
			map[string]string{"memory.max": "268435456", "memory.swap.max": "0"}},
		{"a small share of the disks", Limits{IOWeight: 50},
			map[string]string{"io.weight": "50", "io.bfq.weight": "50", "io.max": ""}},
		{"a large share of the disks", Limits{IOWeight: 10000},
			map[string]string{"io.weight": "10000", "io.bfq.weight": "1000"}},
		{"a slow disk", Limits{IOMax: []IOMax{{"8:0", 1, 2, 3, 4}}},
			map[string]string{"io.max": "8:0 rbps=1 wbps=2 riops=3 wiops=4", "io.weight": ""}},
		{"slow writes", Limits{IOMax: []IOMax{{Disk: "8:0", WriteBPS: 1 << 20}}},
			map[string]string{"io.max": "8:0 wbps=1048576"}},
		{"nothing", Limits{}, map[string]string{"memory.max": "", "memory.low": "", "cpu.weight": "", "cpuset.cpus": "",
			"pids.max": ""}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := v2Fixture(t, nil)
			must.NoError(t, g.Create(c.l))
			for name, want := range c.want {
				test.Eq(t, want, content(t, g.Path, name)[name], test.Sprint(name))
			}
			must.NoError(t, g.Remove(), must.Sprint("Nomad's scope was touched"))
			test.True(t, exists(g.Path), test.Sprint("Nomad's scope was touched"))
		})
	}
}

func TestV2Create_ReportsErrors(t *testing.T) {
	t.Run("a limit that cannot be written", func(t *testing.T) {
		g := v2Fixture(t, map[string]string{"memory.max": "-"})
		err := g.Create(Limits{MemoryMax: 4096})
		if err == nil || !strings.Contains(err.Error(), g.Path+"/memory.max") || !strings.Contains(err.Error(), `"4096"`) {
			t.Errorf("got %v", err)
		}
		test.False(t, errors.Is(err, ErrUnavailable),
			test.Sprintf("a failed limit is taken for no cgroup at all: %v", err))
	})
	t.Run("a controller that the machine lacks is not an error", func(t *testing.T) {
		g := v2Fixture(t, map[string]string{"memory.max": "-"})
		g.Controllers = []string{"pids"}
		test.NoError(t, g.Create(Limits{MemoryMax: 4096, PidsMax: 3}))
	})
	t.Run("a kernel without weights for I/O", func(t *testing.T) {
		l := Limits{IOWeight: 50}
		test.NoError(t, v2Fixture(t, map[string]string{"io.weight": "-"}).Create(l))
		test.NoError(t, v2Fixture(t, map[string]string{"io.bfq.weight": "-"}).Create(l))
		err := v2Fixture(t, map[string]string{"io.weight": "-", "io.bfq.weight": "-"}).Create(l)
		test.ErrorContains(t, err, "the kernel does not support I/O weights")
	})
	t.Run("a kernel without limits for I/O", func(t *testing.T) {
		err := v2Fixture(t, map[string]string{"io.max": "-"}).Create(Limits{IOMax: []IOMax{{Disk: "8:0", ReadIOPS: 1}}})
		test.ErrorContains(t, err, "io.max")
	})
	t.Run("a scope that Nomad could not make", func(t *testing.T) {
		g := Group{Mode: V2, Path: filepath.Join(t.TempDir(), "a.web.scope")}
		err := g.Create(Limits{})
		must.ErrorIs(t, err, ErrUnavailable)
		test.StrContains(t, err.Error(), g.Path)
	})
	for name, l := range map[string]Limits{"memory": {MemoryMax: -2}, "reservation": {MemoryLow: -1},
		"processes": {PidsMax: -1}} {
		t.Run("a negative limit of "+name, func(t *testing.T) {
			test.ErrorContains(t, v2Fixture(t, nil).Create(l), "negative")
		})
	}
}

func TestV2Create_ResetsAScopeOfAnEarlierRun(t *testing.T) {
	g := v2Fixture(t, map[string]string{"cgroup.subtree_control": "cpu memory\n",
		"cgroup.events": "populated 0\nfrozen 1\n", "inner/deep/": ""})
	must.NoError(t, g.Create(Limits{}))
	test.Eq(t, "-cpu -memory", content(t, g.Path, "cgroup.subtree_control")["cgroup.subtree_control"],
		test.Sprint("subtree_control"))
	test.StrHasPrefix(t, "0", content(t, g.Path, "cgroup.freeze")["cgroup.freeze"], test.Sprint("freeze"))
	test.False(t, exists(filepath.Join(g.Path, "inner")), test.Sprint("the task's sub-cgroups were not removed"))
}

func TestV2Stats_AreRead(t *testing.T) {
	known := func(n uint64) Value { return Value{n, true} }
	full := Stats{
		CPUTotal: known(1500000), CPUUser: known(1000000), CPUSystem: known(500000),
		ThrottledPeriods: known(4), ThrottledTime: known(20000),
		RSS: known(1024), Cache: known(2048), Swap: known(4096), Usage: known(8192), UsagePeak: known(16384),
	}
	t.Run("everything", func(t *testing.T) {
		got, err := v2Fixture(t, nil).Stats()
		must.NoError(t, err)
		test.EqOp(t, full, got)
	})
	t.Run("a kernel without peak and swap", func(t *testing.T) {
		want := full
		want.UsagePeak, want.Swap = Value{}, Value{}
		g := v2Fixture(t, map[string]string{"memory.peak": "-", "memory.swap.current": "-"})
		got, err := g.Stats()
		must.NoError(t, err)
		test.EqOp(t, want, got)
	})
	t.Run("no memory controller", func(t *testing.T) {
		g := v2Fixture(t, nil)
		g.Controllers = []string{"pids"}
		got, err := g.Stats()
		must.NoError(t, err, must.Sprintf("got %+v", got))
		must.False(t, got.Usage.Known, must.Sprintf("got %+v", got))
		must.False(t, got.RSS.Known, must.Sprintf("got %+v", got))
		must.True(t, got.CPUTotal.Known, must.Sprintf("got %+v", got))
	})
	t.Run("a removed group", func(t *testing.T) {
		_, err := (Group{Mode: V2, Path: filepath.Join(t.TempDir(), "x")}).Stats()
		test.ErrorIs(t, err, fs.ErrNotExist)
	})
	t.Run("a file without a number", func(t *testing.T) {
		g := v2Fixture(t, map[string]string{"memory.current": "max\n"})
		_, err := g.Stats()
		test.ErrorContains(t, err, "memory.current")
	})
	t.Run("OOM kills", func(t *testing.T) {
		n, err := v2Fixture(t, nil).OOMKills()
		must.NoError(t, err)
		test.Eq(t, 3, n)
		n, err = v2Fixture(t, nil).LimitHits()
		must.NoError(t, err)
		test.Eq(t, 2, n)
	})
}

func TestV2Procs_AreListed(t *testing.T) {
	g := v2Fixture(t, map[string]string{"cgroup.procs": "30\n0\n7\n", "sub/cgroup.procs": "7\n8\n",
		"sub/deep/cgroup.procs": "9\n", "cgroup.events": "populated 1\nfrozen 0\n"})
	pids, err := g.Procs()
	must.NoError(t, err)
	must.SliceLen(t, 4, pids)
	must.Eq(t, 7, pids[0])
	test.Eq(t, 30, pids[3])
	empty, err := g.Empty()
	must.NoError(t, err, must.Sprintf("empty: %v", empty))
	test.False(t, empty, test.Sprintf("empty: %v", empty))
}

func TestV2Kill_IsOneWrite(t *testing.T) {
	// the pid is above every pid_max, so no process has it, and a signal to it would fail
	g := v2Fixture(t, map[string]string{"cgroup.procs": "999999999\n", "cgroup.events": "populated 1\n"})
	must.NoError(t, g.KillOnce())
	test.Eq(t, "1", content(t, g.Path, "cgroup.kill")["cgroup.kill"], test.Sprint("cgroup.kill"))
}

func TestV2Kill_WritesNothingToAnEmptyGroup(t *testing.T) {
	g := v2Fixture(t, nil)
	must.NoError(t, g.Kill())
	test.Eq(t, "", content(t, g.Path, "cgroup.kill")["cgroup.kill"], test.Sprint("cgroup.kill was written"))
}

func TestKill_RefusesTheCallersGroup(t *testing.T) {
	self := strings.TrimSpace(string(mustRead(t, "/proc/self/stat")))
	self, _, _ = strings.Cut(self, " ")
	g := v2Fixture(t, map[string]string{"cgroup.procs": "999999999\n", "below/cgroup.procs": self + "\n",
		"cgroup.events": "populated 1\n"})
	for name, err := range map[string]error{"kill": g.Kill(), "signal": g.Signal(0)} {
		test.ErrorIs(t, err, ErrSelf, test.Sprint(name))
	}
	test.Eq(t, "", content(t, g.Path, "cgroup.kill")["cgroup.kill"], test.Sprint("cgroup.kill was written"))
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must.NoError(t, err)
	return b
}

func TestGroup_WithoutModeDoesNothing(t *testing.T) {
	for _, g := range []Group{{}, {Mode: None}} {
		empty, err := g.Empty()
		must.NoError(t, err, must.Sprintf("empty: %v", empty))
		test.True(t, empty, test.Sprintf("empty: %v", empty))
		f, err := g.OpenDir()
		must.Nil(t, f, must.Sprint("open"))
		test.NoError(t, err, test.Sprint("open"))
		s, err := g.Stats()
		must.NoError(t, err, must.Sprint("stats"))
		test.EqOp(t, (Stats{}), s, test.Sprint("stats"))
		for name, err := range map[string]error{"create": g.Create(Limits{MemoryMax: 1}), "kill": g.Kill(),
			"signal": g.Signal(0), "remove": g.Remove(), "leave": g.Leave()} {
			test.NoError(t, err, test.Sprint(name))
		}
		n := len(g.TasksFiles())
		test.Eq(t, 0, n, test.Sprintf("%d files to join", n))
	}
}

func TestWeight_MatchesNomadsDrivers(t *testing.T) {
	for shares, want := range map[uint64]uint64{1: 1, 2: 1, 10: 4, 100: 17, 1024: 100, 4000: 297, 262144: 10000,
		1 << 40: 10000} {
		test.Eq(t, want, weight(shares), test.Sprintf("weight(%d", shares))
	}
}
