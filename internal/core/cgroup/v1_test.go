package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// joinEnv makes the test binary join the v1 groups whose tasks files it names,
// as the launcher does, and exec its arguments.
const joinEnv = "OUTRIDER_TEST_JOIN"

func init() {
	files, ok := os.LookupEnv(joinEnv)
	if !ok {
		return
	}
	runtime.LockOSThread() // "0" moves the writing thread, and exec makes it the process
	for _, file := range filepath.SplitList(files) {
		if err := writeFile(file, "0"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(125)
		}
	}
	os.Unsetenv(joinEnv)
	fmt.Fprintln(os.Stderr, syscall.Exec(os.Args[1], os.Args[1:], os.Environ()))
	os.Exit(125)
}

// v1Task makes what Nomad makes for a task on v1, and plans its groups. At the
// end of the test it checks that nothing of ours is left, and takes Nomad's
// part away.
func v1Task(t testing.TB) Group {
	t.Helper()
	s := Detect("")
	if s.Mode != V1 || s.Mounts["freezer"] == "" || s.Mounts["memory"] == "" || s.Mounts["cpu"] == "" || s.Mounts["cpuset"] == "" {
		t.Skipf("needs root and the cgroup v1 hierarchies freezer, memory, cpu and cpuset; here the mode is %s. %s", s.Mode, s.Missing)
	}
	parent := fmt.Sprintf("outrider-test-%d", os.Getpid())
	share := filepath.Join(s.Root, "cpuset", parent, "share")
	g := Plan(s, share, fmt.Sprintf("alloc%d", time.Now().UnixNano()), "web")
	var made []string
	for _, controller := range []string{"freezer", "memory", "cpu"} {
		made = append(made, filepath.Dir(g.V1[controller]), g.V1[controller])
	}
	made = append(made, filepath.Dir(share), share)
	for _, dir := range made {
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		if strings.HasPrefix(dir, filepath.Dir(share)) {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				b, err := readFile(filepath.Join(s.Root, "cpuset", file))
				if err != nil {
					t.Fatal(err)
				}
				if err := writeFile(filepath.Join(dir, file), strings.TrimSpace(string(b))); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	t.Cleanup(func() {
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		for _, dir := range g.Owned {
			if exists(dir) || exists(filepath.Dir(dir)) {
				t.Errorf("left behind: %s or its parent", dir)
			}
		}
		for _, dir := range slices.Backward(made) {
			if err := removeTree(dir); err != nil {
				t.Error(err)
			}
		}
	})
	return g
}

// start runs a shell command in the group the way a task is started.
func start(t testing.TB, g Group, script string) *exec.Cmd {
	t.Helper()
	dir, err := g.OpenDir()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "/bin/sh", "-c", script)
	cmd.Env = append(os.Environ(), joinEnv+"="+strings.Join(g.TasksFiles(), ":"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if dir != nil {
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func countProcs(t testing.TB, g Group) int {
	pids, err := g.Procs()
	if err != nil {
		t.Fatal(err)
	}
	return len(pids)
}

// withoutUnified is the group of a machine that has v1 alone, hence no cgroup.kill.
func withoutUnified(g Group) Group {
	g.Owned = slices.DeleteFunc(slices.Clone(g.Owned), func(dir string) bool { return dir == g.Unified })
	g.Unified = ""
	return g
}

// running waits until the process has become the program of that name: then it
// is in all groups.
func running(t testing.TB, cmd *exec.Cmd, name string) {
	t.Helper()
	eventually(t, name+" runs", func() bool {
		return string(mustRead(t, fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))) == name+"\n"
	})
}

func TestV1LimitsAreRead(t *testing.T) {
	zero := uint64(0)
	cases := []struct {
		name string
		l    Limits
		want map[string]string // controller/file -> content
	}{
		{"a soft and a hard limit", Limits{MemoryMax: 64 << 20, MemoryLow: 32 << 20, Swappiness: &zero},
			map[string]string{"memory/memory.limit_in_bytes": "67108864", "memory/memory.soft_limit_in_bytes": "33554432", "memory/memory.swappiness": "0"}},
		{"no hard limit", Limits{MemoryMax: -1}, map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712"}},
		{"cpu and pids", Limits{CPUShares: 500, PidsMax: 17}, map[string]string{"cpu/cpu.shares": "500", "pids/pids.max": "17"}},
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

func TestV1CreateThatFailsLeavesNothing(t *testing.T) {
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

func TestV1OwnCoresAreSet(t *testing.T) {
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
		return strings.Contains(string(mustRead(t, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))), "Cpus_allowed_list:\t0\n")
	})
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
}

func TestV1TaskIsInEveryGroup(t *testing.T) {
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
	if !strings.Contains(self, "cpuset:/"+filepath.Base(filepath.Dir(filepath.Dir(g.V1["cpuset"])))+"/share\n") && !strings.Contains(self, "/share\n") {
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

func TestV1StatsAndOOMKills(t *testing.T) {
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
		"usage": s.Usage, "peak": s.UsagePeak, "pids": s.PIDs, "throttled periods": s.ThrottledPeriods, "throttled time": s.ThrottledTime,
	} {
		if !v.Known {
			t.Errorf("%s is not known", name)
		}
	}
	if s.CPUTotal.N == 0 || s.CPUTotal.N > uint64(time.Minute) || s.UsagePeak.N < 20<<20 || s.UsagePeak.N > 24<<20 {
		t.Errorf("got %+v", s)
	}
}

// tree of a task that does all it can to get away: own sessions, double forks.
const daemons = `
	(setsid sh -c 'sleep 300 & exec sleep 301' &)
	setsid sh -c '(sleep 302 &) ; (setsid sleep 303 &)'
	exec sleep 304`

func TestV1KillLeavesNothingOfATree(t *testing.T) {
	cases := []struct {
		name    string
		prepare func(t *testing.T, g *Group)
	}{
		{"as it is", func(*testing.T, *Group) {}},
		{"without cgroup.kill", func(t *testing.T, g *Group) {
			*g = withoutUnified(*g)
		}},
		{"frozen by someone else", func(t *testing.T, g *Group) {
			t.Cleanup(func() { writeFile(g.V1["freezer"]+"/freezer.state", "THAWED") })
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := v1Task(t)
			c.prepare(t, &g)
			if err := g.Create(Limits{}); err != nil {
				t.Fatal(err)
			}
			cmd := start(t, g, daemons)
			eventually(t, "five processes are there", func() bool { return countProcs(t, g) == 5 })
			pids, _ := g.Procs()
			if strings.HasPrefix(c.name, "frozen") {
				if err := writeFile(g.V1["freezer"]+"/freezer.state", "FROZEN"); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.Kill(); err != nil {
				t.Fatal(err)
			}
			for _, pid := range pids {
				if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(b), ") Z ") && !strings.Contains(string(b), ") X ") {
					t.Errorf("still there: %s", b)
				}
			}
			// not even the zombie of the main process is reaped yet
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
			cmd.Wait()
		})
	}
}

func TestV1KillOfAForkBomb(t *testing.T) {
	g := withoutUnified(v1Task(t))
	if err := g.Create(Limits{PidsMax: 40}); err != nil {
		t.Fatal(err)
	}
	start(t, g, `exec 2>/dev/null; f() { (sleep 0.01; f) & (sleep 0.01; f) & wait; }; while :; do f; done`)
	eventually(t, "it multiplies", func() bool { return countProcs(t, g) > 10 })
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if n := countProcs(t, g); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

func TestV1CreateEndsAnEarlierRun(t *testing.T) {
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
}

func TestV1RemoveIsIdempotentAndSparesTheLiving(t *testing.T) {
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

func TestV1ManyTasksComeAndGoAtOnce(t *testing.T) {
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

func TestAParentOfAnOperatorStays(t *testing.T) {
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

func TestLeafIsJoinedLeftAndRemoved(t *testing.T) {
	s := Detect("")
	name := fmt.Sprintf("outrider-test-%d", os.Getpid())
	g := Leaf(s, filepath.Join(s.Root, "cpuset", name, "share"), name)
	if s.Mode != V1 || g.Mode == None {
		t.Skipf("needs root and a cgroup v1 hierarchy name=systemd or cgroup2; here the mode is %s. %s", s.Mode, s.Missing)
	}
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	home := string(mustRead(t, "/proc/self/cgroup"))
	if err := g.Join(0); err != nil {
		t.Fatal(err)
	}
	if got := string(mustRead(t, "/proc/self/cgroup")); strings.Count(got, name+"/"+name) != len(g.Owned) {
		t.Errorf("in these groups:\n%s", got)
	}
	if err := g.Create(Limits{}); err != nil { // the supervisor, upgraded in place
		t.Errorf("again: %v", err)
	}
	if err := g.Kill(); !errors.Is(err, ErrSelf) {
		t.Errorf("kill: %v", err)
	}
	if err := g.Leave(); err != nil {
		t.Fatal(err)
	}
	if got := string(mustRead(t, "/proc/self/cgroup")); strings.Contains(got, name) {
		t.Errorf("not left; before:\n%safter:\n%s", home, got)
	}
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range g.Owned {
		if exists(filepath.Dir(dir)) {
			t.Errorf("left behind: %s", filepath.Dir(dir))
		}
	}
}
