// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

func TestProbe_ReportsItsStart(t *testing.T) {
	dir := t.TempDir()
	s, err := newStarter(dir)
	must.NoError(t, err)
	defer s.times.Close()
	probe := filepath.Join(dir, "probe")
	must.NoError(t, writeProbe(probe))
	for range 3 {
		before := monotonic()
		first, _, err := s.fork(exec.Command(probe, s.fifo))
		must.NoError(t, err)
		if first <= 0 || first > monotonic()-before {
			t.Fatalf("the first instruction was %v after the start, in a run of %v", first, monotonic()-before)
		}
	}
}

func TestScript_ReportsItsStart(t *testing.T) {
	dir := t.TempDir()
	s, err := newStarter(dir)
	must.NoError(t, err)
	defer s.times.Close()
	if _, err := os.Stat(interpreted); err != nil {
		t.Skip("there is no ", interpreted)
	}
	file := filepath.Join(dir, "script.py")
	must.NoError(t, os.WriteFile(file, []byte(script), 0o644))
	before := monotonic()
	first, _, err := s.fork(exec.Command(interpreted, file, s.fifo, "json"))
	must.NoError(t, err)
	if first <= 0 || first > monotonic()-before {
		t.Errorf("the first line was %v after the start, in a run of %v", first, monotonic()-before)
	}
	_, _, err = s.fork(exec.Command(interpreted, file, s.fifo, "no_such_package"))
	test.Error(t, err, test.Sprint("a script without its package is taken for one that ran"))
}

// A wheel is also a place to import from (zipimport).
func TestWheel_HasItsModules(t *testing.T) {
	if _, err := os.Stat(interpreted); err != nil {
		t.Skip("there is no ", interpreted)
	}
	dir := t.TempDir()
	must.NoError(t, packageOf("package", 5).Write(dir))
	const check = `import sys, zipfile
sys.path.insert(0, sys.argv[1])
from package import module3
assert module3.function_3_7([1, 2, 1000]) == [(1, 6)], module3.function_3_7([1, 2, 1000])
modules = [n for n in zipfile.ZipFile(sys.argv[1]).namelist() if n.endswith(".py")]
assert len(modules) == 5, modules
`
	wheel := filepath.Join(dir, "package-1.0-py3-none-any.whl")
	out, err := exec.Command(interpreted, "-I", "-c", check, wheel).CombinedOutput()
	test.NoError(t, err, test.Sprintf("%v: %s", err, out))
}

func TestFootprints_MayVaryButNotGrow(t *testing.T) {
	was := footprints{plugin: footprint{1, 39_000, 16}, host: footprint{3, 100_000, 40}}
	for name, c := range map[string]struct {
		change func(*footprints)
		grown  bool
	}{
		"the same":        {func(*footprints) {}, false},
		"less":            {func(f *footprints) { f.plugin.rss, f.plugin.descriptors = 30_000, 15 }, false},
		"noise":           {func(f *footprints) { f.plugin.rss += 4_000 }, false},
		"a descriptor":    {func(f *footprints) { f.plugin.descriptors++ }, true},
		"one on the host": {func(f *footprints) { f.host.descriptors++ }, true},
		"a process":       {func(f *footprints) { f.host.processes++ }, true},
		"10 kB a start":   {func(f *footprints) { f.plugin.rss += 8_300 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			is := was
			c.change(&is)
			err := is.grownFrom(was)
			test.Eq(t, c.grown, err != nil, test.Sprint(err))
		})
	}
	test.Error(t, footprints{}.grownFrom(footprints{}), test.Sprint("nothing was measured"))
}

func TestTree_SeparatesTasksFromHelpers(t *testing.T) {
	const marker = "1234567.5"
	shell := exec.Command("/bin/sh", "-c", "sleep "+marker+"; true")
	helper := exec.Command("/bin/sleep", "1000")
	for _, c := range []*exec.Cmd{shell, helper} {
		must.NoError(t, c.Start())
		defer c.Wait()
		defer c.Process.Kill()
	}
	want := map[int]role{os.Getpid(): isAgent, shell.Process.Pid: isTask, helper.Process.Pid: isOther}
	var child int // of the task: it belongs to it
	for end := time.Now().Add(time.Minute); child == 0; time.Sleep(10 * time.Millisecond) {
		must.False(t, time.Now().After(end), must.Sprint("the task's own process does not appear"))
		ps, err := tree(os.Getpid(), t.TempDir(), marker)
		must.NoError(t, err)
		for _, p := range ps {
			if st, err := task.ReadStat(p.pid); err == nil && st.Parent == shell.Process.Pid {
				child = p.pid
				test.Eq(t, isTask, p.role, test.Sprint("a process of a task is taken for"))
			}
			if r, ok := want[p.pid]; ok && p.role != r {
				t.Errorf("process %d is taken for %s, want %s", p.pid, p.role, r)
			}
		}
	}
	_ = unix.Kill(child, unix.SIGKILL)
}

func TestRole_FollowsCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		want role
	}{
		{[]string{"/opt/plugins/nomad-driver-exec-lite"}, isPlugin},
		{[]string{"outrider-supervisor", "supervise", "/x"}, isSupervisor},
		{[]string{"outrider-supervisor", "collect", "/x"}, isCollector},
		{[]string{"/usr/bin/nomad", "executor", "{}"}, isExecutor},
		{[]string{"/usr/bin/nomad", "logmon"}, isLogmon},
		{[]string{"/bin/sleep", "MARK"}, isTask},
		{[]string{"/usr/bin/ssh", "host", "/bin/sleep", "MARK"}, isOther},
		{[]string{"/bin/sleep", "1"}, isOther},
	} {
		test.Eq(t, c.want, roleOf(2, 1, c.args, "MARK"), test.Sprintf("%q is taken for", c.args))
	}
}

func TestVerdict_ComparesWithBar(t *testing.T) {
	for _, c := range []struct {
		l, r, bar      float64
		ratio, verdict string
	}{
		{10, 6000, 300, "1/600", "PASS (1/300)"},
		{10, 3000, 300, "1/300", "PASS (1/300)"},
		{10, 2999, 300, "1/300", "FAIL (1/300)"},
		{2, 5, 2.5, "1/2.5", "PASS (1/2.5)"},
		{-3, 5, 300, "~0", "PASS (1/300)"}, // within the noise
		{3, 5, 0, "1/1.7", ""},
	} {
		test.Eq(t, c.ratio, ratio(c.l, c.r), test.Sprintf("ratio(%g, %g", c.l, c.r))
		test.Eq(t, c.verdict, verdict(c.l, c.r, c.bar), test.Sprintf("verdict(%g, %g, %g", c.l, c.r, c.bar))
	}
}

func TestResults_ShowEachQuantityInARow(t *testing.T) {
	var r results
	start := quantity{"start", millis, 6, nil}
	for i := range 3 {
		r.add(lite, float64(i+1)*1e6, start, quantity{"– first", millis, 0, first})
		r.add(raw, float64(i+1)*1e7, start, quantity{"– first", millis, 0, first})
	}
	r.add(lite, 1e6, quantity{"recovery", millis, 0, nil})
	must.Len(t, 3, r.rows)
	test.Eq(t, []string{"start", "2.00 ms", "20.00 ms", "1/10", "PASS (1/6)"}, r.cells(r.rows[0]))
	test.Eq(t, []string{"– first", "1.00 ms", "10.00 ms", "1/10", ""}, r.cells(r.rows[1]))
	test.Eq(t, []string{"recovery", "1.00 ms", "no plugin", "", ""}, r.cells(r.rows[2]))
}

func TestPercentile_IsNearestRank(t *testing.T) {
	var list series
	for i := range 200 {
		list = append(list, time.Duration(200-i))
	}
	got := percentile(list, 99)
	test.Eq(t, 198, got, test.Sprintf("the 99th percentile of 1 to 200 is %d, want 198", got))
	got = median(list)
	test.Eq(t, 100, got, test.Sprintf("the median of 1 to 200 is %d, want 100", got))
	got = percentile(list[:1], 99)
	test.Eq(t, 200, got, test.Sprintf("the 99th percentile of one value is %d, want that value", got))
}

func TestMemory_OfEndedProcessIsNoFailure(t *testing.T) {
	cmd := exec.Command("/bin/true")
	must.NoError(t, cmd.Run())
	_, err := memoryOf(cmd.Process.Pid)
	test.True(t, ended(err), test.Sprintf("its memory: %v", err))
	_, err = task.ReadStat(cmd.Process.Pid)
	test.True(t, ended(err), test.Sprintf("its time: %v", err))
	_, err = memoryOf(os.Getpid())
	test.False(t, ended(err), test.Sprintf("this process's: %v", err))
}
