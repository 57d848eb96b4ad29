package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// v1Fixture is a group on v1 whose files are plain ones.
func v1Fixture(t *testing.T, files map[string]string) Group {
	t.Helper()
	g := Group{Mode: V1, V1: map[string]string{}}
	for _, controller := range []string{"freezer", "memory", "cpu", "cpuacct", "pids"} {
		files[controller+"/x/"] = ""
	}
	root := fixture(t, files)
	for _, controller := range []string{"freezer", "memory", "cpu", "cpuacct", "pids"} {
		g.V1[controller] = filepath.Join(root, controller, "x")
	}
	return g
}

func TestV1Stats_CountTheWholeTree(t *testing.T) {
	g := v1Fixture(t, map[string]string{
		"cpuacct/x/cpuacct.usage": "1500\n", "cpuacct/x/cpuacct.usage_user": "1000\n", "cpuacct/x/cpuacct.usage_sys": "500\n",
		"cpu/x/cpu.stat":                     "nr_periods 9\nnr_throttled 4\nthrottled_time 20\n",
		"memory/x/memory.stat":               "cache 1\nrss 2\nswap 3\ntotal_cache 10\ntotal_rss 20\ntotal_swap 30\n",
		"memory/x/memory.usage_in_bytes":     "60\n",
		"memory/x/memory.max_usage_in_bytes": "70\n",
		"pids/x/pids.current":                "5\n",
	})
	known := func(n uint64) Value { return Value{n, true} }
	want := Stats{
		CPUTotal: known(1500), CPUUser: known(1000), CPUSystem: known(500),
		ThrottledPeriods: known(4), ThrottledTime: known(20),
		RSS: known(20), Cache: known(10), Swap: known(30), Usage: known(60), UsagePeak: known(70), PIDs: known(5),
	}
	if got, err := g.Stats(); err != nil || got != want {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
}

func TestV1OOMKills_CountSubgroups(t *testing.T) {
	g := v1Fixture(t, map[string]string{
		"memory/x/memory.oom_control":        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"memory/x/a/memory.oom_control":      "oom_kill 3\n",
		"memory/x/a/deep/memory.oom_control": "oom_kill 4\n",
		"memory/x/gone/":                     "", // its files went while it was looked at
	})
	if n, err := g.OOMKills(); err != nil || n != 9 {
		t.Errorf("got %d, %v", n, err)
	}
	if err := os.Remove(filepath.Join(g.V1["memory"], "memory.oom_control")); err != nil {
		t.Fatal(err)
	}
	if n, err := g.OOMKills(); err == nil {
		t.Errorf("of a group that is gone: %d", n)
	}
}

func TestV1Kill_ThawsAfterAnError(t *testing.T) {
	// the id of a thread is what can't be signalled
	tid := make(chan int)
	end := make(chan struct{})
	for range 2 { // one of them may be the first thread, whose id is the process's
		go func() {
			runtime.LockOSThread()
			tid <- unix.Gettid()
			<-end
		}()
	}
	defer close(end)
	id := <-tid
	if other := <-tid; id == os.Getpid() {
		id = other
	}
	g := v1Fixture(t, map[string]string{
		"pids/x/cgroup.procs": strconv.Itoa(id) + "\n", "freezer/x/freezer.state": "THAWED",
	})
	if err := g.KillOnce(); err == nil {
		t.Fatal("no error")
	}
	if state := content(t, g.V1["freezer"], "freezer.state")["freezer.state"]; state != "THAWED" {
		t.Errorf("the group is %s", state)
	}
}

func TestV1Kill_FreezesFirst(t *testing.T) {
	cmd := sleeper(t)
	g := v1Fixture(t, map[string]string{"pids/x/cgroup.procs": strconv.Itoa(cmd.Process.Pid) + "\n"})
	state := filepath.Join(g.V1["freezer"], "freezer.state")
	if err := unix.Mkfifo(state, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(state, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := g.KillOnce(); err != nil {
		t.Fatal(err)
	}
	written := make([]byte, 100)
	if n, err := f.Read(written); err != nil || string(written[:n]) != "FROZENTHAWED" {
		t.Errorf("freezer.state was written %q, %v", written[:n], err)
	}
	if ws, _ := cmd.Process.Wait(); ws == nil || ws.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended by %v", ws)
	}
}

// sleeper is a process that ends with the test.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestSignal_SparesProcessesOutsideOfTheGroup(t *testing.T) {
	cmd := sleeper(t)
	for name, send := range map[string]func(Group) error{
		"signal": func(g Group) error { return g.Signal(unix.SIGKILL) },
		"kill":   func(g Group) error { delete(g.V1, "freezer"); return g.KillOnce() },
	} {
		g := v1Fixture(t, map[string]string{"freezer/x/freezer.state": ""})
		procs := filepath.Join(g.V1["pids"], "cgroup.procs")
		if err := unix.Mkfifo(procs, 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- send(g) }()
		w, err := os.OpenFile(procs, os.O_WRONLY, 0) // when it reads who is in the group
		if err != nil {
			t.Fatal(err)
		}
		// this one was, and has left it when it is looked at again
		if err := os.WriteFile(procs+".new", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(procs+".new", procs); err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteString(strconv.Itoa(cmd.Process.Pid) + "\n"); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := cmd.Process.Signal(unix.Signal(0)); err != nil || zombie(t, cmd.Process.Pid) {
			t.Errorf("%s: it was hit: %v", name, err)
		}
	}
}

func TestV1Kill_EndsWhatIsForkedBeforeTheFreeze(t *testing.T) {
	first, late := sleeper(t), sleeper(t)
	g := v1Fixture(t, map[string]string{"freezer/x/freezer.state": ""})
	procs := filepath.Join(g.V1["pids"], "cgroup.procs")
	if err := unix.Mkfifo(procs, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.KillOnce() }()
	w, err := os.OpenFile(procs, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	both := strconv.Itoa(first.Process.Pid) + "\n" + strconv.Itoa(late.Process.Pid) + "\n"
	if err := os.WriteFile(procs+".new", []byte(both), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(procs+".new", procs); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(strconv.Itoa(first.Process.Pid) + "\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*exec.Cmd{first, late} {
		eventually(t, "it is dead", func() bool { return zombie(t, cmd.Process.Pid) })
	}
}

func TestSignal_ReachesEveryProcessOfALargeGroup(t *testing.T) {
	const many = 600
	files := map[string]string{"pids/x/cgroup.procs": ""}
	var all []*exec.Cmd
	for range many {
		cmd := sleeper(t)
		all = append(all, cmd)
		files["pids/x/cgroup.procs"] += strconv.Itoa(cmd.Process.Pid) + "\n"
	}
	g := v1Fixture(t, files)
	if err := g.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range all {
		eventually(t, "it ends", func() bool { return zombie(t, cmd.Process.Pid) })
	}
}

func zombie(t *testing.T, pid int) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(b), ") Z ")
}

func TestV1Empty_LooksAtEveryHierarchy(t *testing.T) {
	for name, c := range map[string]struct {
		events, procs string
		empty         bool
	}{
		"nothing":       {"populated 0\n", "", true},
		"in one of v1":  {"populated 0\n", "7\n", false},
		"in unified":    {"populated 1\n", "", false},
		"in both":       {"populated 1\n", "7\n", false},
		"below unified": {"populated 1\nfrozen 0\n", "", false},
	} {
		g := v1Fixture(t, map[string]string{"unified/x/cgroup.events": c.events, "pids/x/cgroup.procs": c.procs})
		g.Unified = filepath.Join(filepath.Dir(filepath.Dir(g.V1["pids"])), "unified", "x")
		if empty, err := g.Empty(); err != nil || empty != c.empty {
			t.Errorf("%s: empty is %v, %v", name, empty, err)
		}
	}
}
