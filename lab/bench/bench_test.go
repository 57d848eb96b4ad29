package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestProbe_ReportsItsStart(t *testing.T) {
	dir := t.TempDir()
	s, err := newStarter(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.times.Close()
	probe := filepath.Join(dir, "probe")
	if err := writeProbe(probe); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		before := monotonic()
		first, _, err := s.fork(exec.Command(probe, s.fifo))
		if err != nil {
			t.Fatal(err)
		}
		if first <= 0 || first > monotonic()-before {
			t.Fatalf("the first instruction was %v after the start, in a run of %v", first, monotonic()-before)
		}
	}
}

func TestScript_ReportsItsStart(t *testing.T) {
	dir := t.TempDir()
	s, err := newStarter(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.times.Close()
	if _, err := os.Stat(interpreted); err != nil {
		t.Skip("there is no ", interpreted)
	}
	file := filepath.Join(dir, "script.py")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	before := monotonic()
	first, _, err := s.fork(exec.Command(interpreted, file, s.fifo, "json"))
	if err != nil {
		t.Fatal(err)
	}
	if first <= 0 || first > monotonic()-before {
		t.Errorf("the first line was %v after the start, in a run of %v", first, monotonic()-before)
	}
	if _, _, err := s.fork(exec.Command(interpreted, file, s.fifo, "no_such_package")); err == nil {
		t.Error("a script without its package is taken for one that ran")
	}
}

// A wheel is also a place to import from (zipimport).
func TestWheel_HasItsModules(t *testing.T) {
	if _, err := os.Stat(interpreted); err != nil {
		t.Skip("there is no ", interpreted)
	}
	dir := t.TempDir()
	if err := packageOf("package", 5).Write(dir); err != nil {
		t.Fatal(err)
	}
	const check = `import sys, zipfile
sys.path.insert(0, sys.argv[1])
from package import module3
assert module3.function_3_7([1, 2, 1000]) == [(1, 6)], module3.function_3_7([1, 2, 1000])
modules = [n for n in zipfile.ZipFile(sys.argv[1]).namelist() if n.endswith(".py")]
assert len(modules) == 5, modules
`
	wheel := filepath.Join(dir, "package-1.0-py3-none-any.whl")
	if out, err := exec.Command(interpreted, "-I", "-c", check, wheel).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestTree_SeparatesTasksFromHelpers(t *testing.T) {
	const marker = "1234567.5"
	task := exec.Command("/bin/sh", "-c", "sleep "+marker+"; true")
	helper := exec.Command("/bin/sleep", "1000")
	for _, c := range []*exec.Cmd{task, helper} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer c.Process.Kill()
	}
	want := map[int]role{os.Getpid(): isAgent, task.Process.Pid: isTask, helper.Process.Pid: isOther}
	var child int // of the task: it belongs to it
	for end := time.Now().Add(time.Minute); child == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the task's own process does not appear")
		}
		ps, err := tree(os.Getpid(), t.TempDir(), marker)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ps {
			if parent, err := parentOf(p.pid); err == nil && parent == task.Process.Pid {
				child = p.pid
				if p.role != isTask {
					t.Errorf("a process of a task is taken for %s", p.role)
				}
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
		{[]string{"/bin/sleep", "1"}, isOther},
	} {
		var args [][]byte
		for _, a := range c.args {
			args = append(args, []byte(a))
		}
		if got := roleOf(2, 1, args, "MARK"); got != c.want {
			t.Errorf("%q is taken for %s, want %s", c.args, got, c.want)
		}
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
		if got := ratio(c.l, c.r); got != c.ratio {
			t.Errorf("ratio(%g, %g) is %q, want %q", c.l, c.r, got, c.ratio)
		}
		if got := verdict(c.l, c.r, c.bar); got != c.verdict {
			t.Errorf("verdict(%g, %g, %g) is %q, want %q", c.l, c.r, c.bar, got, c.verdict)
		}
	}
}

func TestPercentile_IsNearestRank(t *testing.T) {
	var list []time.Duration
	for i := range 200 {
		list = append(list, time.Duration(200-i))
	}
	if got := percentile(list, 99); got != 198 {
		t.Errorf("the 99th percentile of 1 to 200 is %d, want 198", got)
	}
	if got := median(list, self); got != 100 {
		t.Errorf("the median of 1 to 200 is %d, want 100", got)
	}
	if got := percentile(list[:1], 99); got != 200 {
		t.Errorf("the 99th percentile of one value is %d, want that value", got)
	}
}

func TestMemory_OfEndedProcessIsNoFailure(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := memoryOf(cmd.Process.Pid); !ended(err) {
		t.Errorf("its memory: %v", err)
	}
	if _, err := cpuTicks(cmd.Process.Pid); !ended(err) {
		t.Errorf("its time: %v", err)
	}
	if _, err := memoryOf(os.Getpid()); ended(err) {
		t.Errorf("this process's: %v", err)
	}
}
