// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

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

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// v1Fixture returns a v1 group made of plain files.
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
	})
	known := func(n uint64) Value { return Value{n, true} }
	want := Stats{
		CPUTotal: known(1500), CPUUser: known(1000), CPUSystem: known(500),
		ThrottledPeriods: known(4), ThrottledTime: known(20),
		RSS: known(20), Cache: known(10), Swap: known(30), Usage: known(60), UsagePeak: known(70),
	}
	got, err := g.Stats()
	must.NoError(t, err)
	test.EqOp(t, want, got)
}

func TestV1OOM_CountsSubgroups(t *testing.T) {
	g := v1Fixture(t, map[string]string{
		"memory/x/memory.failcnt":            "5\n",
		"memory/x/a/memory.failcnt":          "6\n",
		"memory/x/memory.oom_control":        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"memory/x/a/memory.oom_control":      "oom_kill 3\n",
		"memory/x/a/deep/memory.oom_control": "oom_kill 4\n",
		"memory/x/gone/":                     "", // as if its files were removed during the read
	})
	n, err := g.OOMKills()
	must.NoError(t, err)
	test.Eq(t, 9, n)
	n, err = g.LimitHits()
	must.NoError(t, err)
	test.Eq(t, 11, n)
	must.NoError(t, os.Remove(filepath.Join(g.V1["memory"], "memory.oom_control")))
	n, err = g.OOMKills()
	test.Error(t, err, test.Sprintf("OOM kills of a removed group: %d", n))
}

func TestV1Kill_ThawsAfterAnError(t *testing.T) {
	// Put a thread into the group: a pidfd exists only for a whole process, so the kill fails.
	tid := make(chan int)
	end := make(chan struct{})
	for range 2 { // two, because one of them may be the first thread, whose id is also the pid
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
	must.Error(t, g.KillOnce(), must.Sprint("no error"))
	test.Eq(t, "THAWED", content(t, g.V1["freezer"], "freezer.state")["freezer.state"], test.Sprint("the group"))
}

func TestV1Kill_FreezesFirst(t *testing.T) {
	cmd := sleeper(t)
	g := v1Fixture(t, map[string]string{"pids/x/cgroup.procs": strconv.Itoa(cmd.Process.Pid) + "\n"})
	state := filepath.Join(g.V1["freezer"], "freezer.state")
	must.NoError(t, unix.Mkfifo(state, 0o600))
	f, err := os.OpenFile(state, os.O_RDWR, 0)
	must.NoError(t, err)
	defer f.Close()
	must.NoError(t, g.KillOnce())
	written := make([]byte, 100)
	if n, err := f.Read(written); err != nil || string(written[:n]) != "FROZENTHAWED" {
		t.Errorf("freezer.state was written %q, %v", written[:n], err)
	}
	if ws, _ := cmd.Process.Wait(); ws == nil || ws.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v", ws)
	}
}

// sleeper starts a process that is killed at the end of the test.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	must.NoError(t, cmd.Start())
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
		must.NoError(t, unix.Mkfifo(procs, 0o600))
		done := make(chan error, 1)
		go func() { done <- send(g) }()
		w, err := os.OpenFile(procs, os.O_WRONLY, 0) // blocks until the first listing of the group
		must.NoError(t, err)
		// the first listing contains the process, the second does not
		must.NoError(t, os.WriteFile(procs+".new", nil, 0o600))
		must.NoError(t, os.Rename(procs+".new", procs))
		_, err = w.WriteString(strconv.Itoa(cmd.Process.Pid) + "\n")
		must.NoError(t, err)
		w.Close()
		test.NoError(t, <-done, test.Sprint(name))
		must.NoError(t, cmd.Process.Signal(unix.Signal(0)), must.Sprintf("%s: the process was killed", name))
		test.False(t, zombie(t, cmd.Process.Pid), test.Sprintf("%s: the process was killed", name))
	}
}

func TestV1Kill_KillsProcessForkedBeforeTheFreeze(t *testing.T) {
	first, late := sleeper(t), sleeper(t)
	g := v1Fixture(t, map[string]string{"freezer/x/freezer.state": ""})
	procs := filepath.Join(g.V1["pids"], "cgroup.procs")
	must.NoError(t, unix.Mkfifo(procs, 0o600))
	done := make(chan error, 1)
	go func() { done <- g.KillOnce() }()
	w, err := os.OpenFile(procs, os.O_WRONLY, 0)
	must.NoError(t, err)
	both := strconv.Itoa(first.Process.Pid) + "\n" + strconv.Itoa(late.Process.Pid) + "\n"
	must.NoError(t, os.WriteFile(procs+".new", []byte(both), 0o600))
	must.NoError(t, os.Rename(procs+".new", procs))
	_, err = w.WriteString(strconv.Itoa(first.Process.Pid) + "\n")
	must.NoError(t, err)
	w.Close()
	must.NoError(t, <-done)
	for _, cmd := range []*exec.Cmd{first, late} {
		testsupport.Eventually(t, "the process is dead", func() bool { return zombie(t, cmd.Process.Pid) })
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
	must.NoError(t, g.Signal(unix.SIGKILL))
	for _, cmd := range all {
		testsupport.Eventually(t, "the process is dead", func() bool { return zombie(t, cmd.Process.Pid) })
	}
}

func zombie(t *testing.T, pid int) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(b), ") Z ")
}

func TestV1Empty_ChecksEveryHierarchy(t *testing.T) {
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
		empty, err := g.Empty()
		must.NoError(t, err, must.Sprintf("%s: empty", name))
		test.Eq(t, c.empty, empty, test.Sprintf("%s: empty", name))
	}
}
