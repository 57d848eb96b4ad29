package cgroup

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// v2Files are the interface files of a scope as the kernel makes them.
var v2Files = map[string]string{
	"cgroup.procs": "", "cgroup.events": "populated 0\nfrozen " +
		"0\n", "cgroup.kill": "", "cgroup.freeze": "0\n", "cgroup.subtree_control": "",
	"memory.max": "", "memory.low": "", "cpu.weight": "", "cpuset.cpus": "", "pids.max": "",
	"cpu.stat": "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 9\nnr_throttled " +
		"4\nthrottled_usec 20\n",
	"memory.current":      "8192\n",
	"memory.peak":         "16384\n",
	"memory.swap.current": "4096\n",
	"memory.stat":         "anon 1024\nfile 2048\nkernel 512\n",
	"memory.events":       "low 0\nhigh 0\nmax 12\noom 2\noom_kill 3\noom_group_kill 0\n",
	"pids.current":        "5\n",
}

// v2Fixture is a group of plain files. It cannot show what a kernel does with
// what is written, only what is written and how files are understood.
func v2Fixture(t *testing.T, change map[string]string) Group {
	files := maps.Clone(v2Files)
	for name, content := range change {
		files[name] = content
		if content == "-" {
			delete(files, name)
		}
	}
	return Group{Mode: V2, Path: fixture(t, files), Controllers: []string{"memory", "cpu", "cpuset", "pids"}}
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
		{"cpu, cores and pids", Limits{CPUShares: 1024, Cpuset: "0-1", PidsMax: 99}, map[string]string{"cpu.weight": "100",
			"cpuset.cpus": "0-1", "pids.max": "99"}},
		{"swappiness has no file on v2", Limits{Swappiness: &zero}, map[string]string{"memory.max": ""}},
		{"nothing", Limits{}, map[string]string{"memory.max": "", "memory.low": "", "cpu.weight": "", "cpuset.cpus": "",
			"pids.max": ""}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := v2Fixture(t, nil)
			if err := g.Create(c.l); err != nil {
				t.Fatal(err)
			}
			for name, want := range c.want {
				if got := content(t, g.Path, name)[name]; got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
			if err := g.Remove(); err != nil || !exists(g.Path) {
				t.Errorf("Nomad's scope was touched: %v", err)
			}
		})
	}
}

func TestV2Errors_SayWhatIsWrong(t *testing.T) {
	t.Run("a limit that cannot be written", func(t *testing.T) {
		g := v2Fixture(t, map[string]string{"memory.max": "-"})
		err := g.Create(Limits{MemoryMax: 4096})
		if err == nil || !strings.Contains(err.Error(), g.Path+"/memory.max") || !strings.Contains(err.Error(), `"4096"`) {
			t.Errorf("got %v", err)
		}
		if errors.Is(err, ErrUnavailable) {
			t.Errorf("a failed limit is taken for no cgroup at all: %v", err)
		}
	})
	t.Run("a controller that the machine lacks is no error", func(t *testing.T) {
		g := v2Fixture(t, map[string]string{"memory.max": "-"})
		g.Controllers = []string{"pids"}
		if err := g.Create(Limits{MemoryMax: 4096, PidsMax: 3}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a scope that Nomad could not make", func(t *testing.T) {
		g := Group{Mode: V2, Path: filepath.Join(t.TempDir(), "a.web.scope")}
		if err := g.Create(Limits{}); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), g.Path) {
			t.Errorf("got %v", err)
		}
	})
	for name, l := range map[string]Limits{"memory": {MemoryMax: -2}, "reservation": {MemoryLow: -1},
		"processes": {PidsMax: -1}} {
		t.Run("a negative limit of "+name, func(t *testing.T) {
			if err := v2Fixture(t, nil).Create(l); err == nil || !strings.Contains(err.Error(), "negative") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestV2Create_MakesAUsedScopeUsable(t *testing.T) {
	g := v2Fixture(t, map[string]string{"cgroup.subtree_control": "cpu memory\n",
		"cgroup.events": "populated 0\nfrozen 1\n", "inner/deep/": ""})
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, g.Path, "cgroup.subtree_control")["cgroup.subtree_control"]; got != "-cpu -memory" {
		t.Errorf("subtree_control: wrote %q", got)
	}
	if got := content(t, g.Path, "cgroup.freeze")["cgroup.freeze"]; !strings.HasPrefix(got, "0") {
		t.Errorf("freeze: %q", got)
	}
	if exists(filepath.Join(g.Path, "inner")) {
		t.Error("the task's sub-cgroups are still there")
	}
}

func TestV2Stats_AreRead(t *testing.T) {
	known := func(n uint64) Value { return Value{n, true} }
	full := Stats{
		CPUTotal: known(1500000), CPUUser: known(1000000), CPUSystem: known(500000),
		ThrottledPeriods: known(4), ThrottledTime: known(20000),
		RSS: known(1024), Cache: known(2048), Swap: known(4096), Usage: known(8192), UsagePeak: known(16384), PIDs: known(5),
	}
	t.Run("everything", func(t *testing.T) {
		if got, err := v2Fixture(t, nil).Stats(); err != nil || got != full {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	t.Run("a kernel without peak and swap", func(t *testing.T) {
		want := full
		want.UsagePeak, want.Swap = Value{}, Value{}
		g := v2Fixture(t, map[string]string{"memory.peak": "-", "memory.swap.current": "-"})
		if got, err := g.Stats(); err != nil || got != want {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	t.Run("no memory controller", func(t *testing.T) {
		g := v2Fixture(t, nil)
		g.Controllers = []string{"pids"}
		if got, err := g.Stats(); err != nil || got.Usage.Known || got.RSS.Known || !got.CPUTotal.Known || !got.PIDs.Known {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	t.Run("a group that is gone", func(t *testing.T) {
		if _, err := (Group{Mode: V2, Path: filepath.Join(t.TempDir(), "x")}).Stats(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a file that makes no sense", func(t *testing.T) {
		g := v2Fixture(t, map[string]string{"memory.current": "max\n"})
		if _, err := g.Stats(); err == nil || !strings.Contains(err.Error(), "memory.current") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("OOM kills", func(t *testing.T) {
		if n, err := v2Fixture(t, nil).OOMKills(); err != nil || n != 3 {
			t.Errorf("got %d, %v", n, err)
		}
	})
}

func TestV2Procs_AreListed(t *testing.T) {
	g := v2Fixture(t, map[string]string{"cgroup.procs": "30\n0\n7\n", "sub/cgroup.procs": "7\n8\n",
		"sub/deep/cgroup.procs": "9\n", "cgroup.events": "populated 1\nfrozen 0\n"})
	pids, err := g.Procs()
	if err != nil || len(pids) != 4 || pids[0] != 7 || pids[3] != 30 {
		t.Errorf("got %v, %v; want 7 8 9 30", pids, err)
	}
	if empty, err := g.Empty(); err != nil || empty {
		t.Errorf("empty: %v, %v", empty, err)
	}
}

func TestV2Kill_IsOneWrite(t *testing.T) {
	// more than any pid_max
	g := v2Fixture(t, map[string]string{"cgroup.procs": "999999999\n", "cgroup.events": "populated 1\n"})
	if err := g.KillOnce(); err != nil {
		t.Fatal(err)
	}
	if got := content(t, g.Path, "cgroup.kill")["cgroup.kill"]; got != "1" {
		t.Errorf("cgroup.kill: %q", got)
	}
}

func TestV2Kill_SparesAnEmptyGroup(t *testing.T) {
	g := v2Fixture(t, nil)
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := content(t, g.Path, "cgroup.kill")["cgroup.kill"]; got != "" {
		t.Errorf("cgroup.kill was written: %q", got)
	}
}

func TestKill_RefusesTheCallersGroup(t *testing.T) {
	self := strings.TrimSpace(string(mustRead(t, "/proc/self/stat")))
	self, _, _ = strings.Cut(self, " ")
	g := v2Fixture(t, map[string]string{"cgroup.procs": "999999999\n", "below/cgroup.procs": self + "\n",
		"cgroup.events": "populated 1\n"})
	for name, err := range map[string]error{"kill": g.Kill(), "signal": g.Signal(0)} {
		if !errors.Is(err, ErrSelf) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got := content(t, g.Path, "cgroup.kill")["cgroup.kill"]; got != "" {
		t.Errorf("cgroup.kill was written: %q", got)
	}
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGroup_OfNoModeDoesNothing(t *testing.T) {
	for _, g := range []Group{{}, {Mode: None}} {
		empty, err := g.Empty()
		if err != nil || !empty {
			t.Errorf("empty: %v, %v", empty, err)
		}
		f, err := g.OpenDir()
		if f != nil || err != nil {
			t.Errorf("open: %v, %v", f, err)
		}
		if s, err := g.Stats(); err != nil || s != (Stats{}) {
			t.Errorf("stats: %v, %v", s, err)
		}
		for name, err := range map[string]error{"create": g.Create(Limits{MemoryMax: 1}), "kill": g.Kill(),
			"signal": g.Signal(0), "remove": g.Remove(), "leave": g.Leave()} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := len(g.TasksFiles()); n != 0 {
			t.Errorf("%d files to join", n)
		}
	}
}

func TestWeight_IsThatOfTheOtherDrivers(t *testing.T) {
	for shares, want := range map[uint64]uint64{1: 1, 2: 1, 10: 4, 100: 17, 1024: 100, 4000: 297, 262144: 10000,
		1 << 40: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("weight(%d) = %d, want %d", shares, got, want)
		}
	}
}
