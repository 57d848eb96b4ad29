// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestOutput_IsReadThroughNomad(t *testing.T) {
	t.Parallel()
	n := common(t)
	a := n.start(t, sh(`echo to stdout; echo to stderr >&2; for i in 1 2 3; do echo $i; done; exec sleep 600`))
	defer a.stop(t)
	a.says(t, "stdout", "3\n")
	a.says(t, "stderr", "to stderr\n") // comes by a way of its own
	if got, want := a.output(t, "stdout"), "to stdout\n1\n2\n3\n"; got != want {
		t.Errorf("stdout is %q, want %q", got, want)
	}
	if got, want := a.output(t, "stderr"), "to stderr\n"; got != want {
		t.Errorf("stderr is %q, want %q", got, want)
	}

	fs, i := n.Client().AllocFS(), a.stub(t)
	a.readable(t)
	frames, errs := fs.Logs(i, false, "main", "stdout", api.OriginEnd, 4, make(chan struct{}), nil)
	select {
	case f := <-frames:
		if f == nil || string(f.Data) != "2\n3\n" {
			t.Errorf("the last 4 bytes are %v", f)
		}
	case err := <-errs:
		t.Errorf("the last 4 bytes can't be read: %v", err)
	}
	files, _, err := fs.List(i, "/alloc/logs", nil)
	must.NoError(t, err)
	var names []string
	for _, f := range files {
		if strings.HasPrefix(f.Name, "main.") {
			names = append(names, f.Name)
		}
	}
	test.Eq(t, "[main.stderr.0 main.stdout.0]", fmt.Sprint(names), test.Sprintf("alloc/logs has %q", names))
}

func TestOutput_IsFollowedThroughRotation(t *testing.T) {
	t.Parallel()
	n := common(t)
	// three files of 1 MiB while somebody follows
	a := n.start(t, conf{"command": counter, "args": []string{"-pad", "120", "-burst", "200", "-every", "40ms", "-lines",
		"24000", "-then", "exit:0"},
		"logs": conf{"max_files": 10, "max_file_size": 1}})
	a.readable(t)

	frames, errs := n.Client().AllocFS().Logs(a.stub(t), true, "main", "stdout", api.OriginStart, 0, make(chan struct{}),
		nil)
	var b strings.Builder
	timeout := time.After(5 * time.Minute)
	for !strings.Contains(last(b.String(), 20), "last") {
		select {
		case f, ok := <-frames:
			if ok {
				b.Write(f.Data)
				continue
			}
			frames = nil
		case err := <-errs:
			t.Fatalf("following ended after %d bytes: %v", b.Len(), err)
		case <-timeout:
			t.Fatalf("after %d bytes no end of the output: %q", b.Len(), last(b.String(), 100))
		}
	}
	lines, ended, err := numbered(b.String())
	must.NoError(t, err, must.Sprintf("followed %d lines, end %v", lines, ended))
	must.True(t, ended, must.Sprintf("followed %d lines, end %v", lines, ended))
	test.Eq(t, 24000, lines, test.Sprintf("followed %d lines, end %v", lines, ended))
	test.Eq(t, "exit 0", a.ended(t), test.Sprint("ended by"))
	if whole := a.output(t, "stdout"); whole != b.String() {
		t.Errorf("the files have %d bytes, %d were followed", len(whole), b.Len())
	}
	files, _ := filepath.Glob(a.dir() + "/alloc/logs/main.stdout.*")
	test.SliceLen(t, 4, files, test.Sprintf("%d log files, want 4", len(files)))
}

func TestExit_CodesAndSignalsArrive(t *testing.T) {
	t.Parallel()
	n := common(t)
	rows := map[string]struct {
		c    conf
		want string
	}{
		"success":                   {conf{"command": "/bin/true"}, "exit 0"},
		"code":                      {sh("exit 7"), "exit 7"},
		"highest code":              {sh("exit 255"), "exit 255"},
		"code like that of a shell": {sh("exit 143"), "exit 143"},
		"signal":                    {sh("kill -TERM $$"), "signal 15"},
		"crash":                     {sh("kill -SEGV $$"), "signal 11"},
	}
	allocs := map[string]*alloc{}
	for name, row := range rows {
		allocs[name] = n.submit(t, job(t, row.c))
	}
	for name, row := range rows {
		test.Eq(t, row.want, allocs[name].ended(t), test.Sprint(name))
	}
}

func TestEnvironment_IsTasksOwn(t *testing.T) {
	t.Parallel()
	a := common(t).submit(t, job(t, sh("env; pwd; id -u; umask; ulimit -Hn; nice").with(conf{
		"umask": "0027", "ulimit": conf{"nofile": "512:1024"}, "nice": 5,
	}), func(_ *api.Job, task *api.Task) {
		task.Env = map[string]string{"GREETING": "hello there", "EMPTY": ""}
	}))
	if got := a.ended(t); got != "exit 0" {
		t.Fatal(got, a.story())
	}
	out := a.output(t, "stdout")
	for _, want := range []string{"GREETING=hello there\n", "EMPTY=\n", "NOMAD_ALLOC_ID=" + a.id + "\n",
		"NOMAD_TASK_NAME=main\n",
		a.dir() + "/main\n", agentUser() + "\n0027\n1024\n5\n"} {
		test.StrContains(t, out, want, test.Sprintf("no %q in", want))
	}
}

func TestTask_RunsAsItsUser(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	a := common(t).submit(t, job(t, sh(`id -un; echo $USER $LOGNAME $HOME; echo x > /dev/stderr`),
		func(_ *api.Job, task *api.Task) {
			task.User = "nobody"
		}))
	if got := a.ended(t); got != "exit 0" {
		t.Fatal(got, a.story(), a.output(t, "stderr"))
	}
	test.StrHasPrefix(t, "nobody\nnobody nobody /", a.output(t, "stdout"))
	test.Eq(t, "x\n", a.output(t, "stderr"), test.Sprint("it could not open its own stderr"))
}

func TestStatistics_AreNotZero(t *testing.T) {
	t.Parallel()
	n := common(t)
	a := n.start(t, sh(`while :; do :; done`))
	defer a.stop(t)
	testsupport.Within(t, time.Minute, func() error {
		u, err := n.Client().Allocations().Stats(a.stub(t), nil)
		if err != nil {
			return err
		}
		task := u.Tasks["main"]
		if task == nil || task.ResourceUsage == nil {
			return fmt.Errorf("no usage of the task: %+v", u)
		}
		cpu, mem := task.ResourceUsage.CpuStats, task.ResourceUsage.MemoryStats
		if cpu.Percent < 1 || cpu.TotalTicks < 1 || mem.RSS == 0 {
			return fmt.Errorf("cpu %+v, memory %+v", cpu, mem)
		}
		if len(task.Pids) != 1 {
			return fmt.Errorf("%d processes, want 1", len(task.Pids))
		}
		return nil
	})
}

func TestRestart_KeepsLog(t *testing.T) {
	t.Parallel()
	n := common(t)
	a := n.start(t, sh(`echo started; exec sleep 600`))
	defer a.stop(t)
	a.says(t, "stdout", "started")
	before := a.pid(t)
	must.NoError(t, n.Client().Allocations().Restart(a.stub(t), "main", nil))
	a.says(t, "stdout", "started\nstarted\n")
	test.False(t, before.alive(), test.Sprint("the process from before the restart lives"))
	testsupport.Within(t, time.Minute, func() error {
		if dirs := n.tasksOf(a.id); len(dirs) != 1 {
			return fmt.Errorf("state of %d runs", len(dirs))
		}
		return nil
	})
}

func TestUpdateInPlace_LeavesTaskAlone(t *testing.T) {
	t.Parallel()
	n := common(t)
	j := job(t, sh(`echo $GREETING; exec sleep 600`), func(j *api.Job, task *api.Task) {
		j.Type = new("service")
		task.Env = map[string]string{"GREETING": "one"}
		g := j.TaskGroups[0]
		g.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Duration(0)), HealthCheck: new("task_states"), Canary: new(0),
			MaxParallel: new(1)}
	})
	a := n.submit(t, j)
	a.running(t)
	a.says(t, "stdout", "one")
	before := a.pid(t)

	j.TaskGroups[0].Count = new(2) // in place for the first, a new one beside it
	n.Client().Jobs().Register(j, nil)
	testsupport.Within(t, time.Minute, func() error { return n.countRunning(*j.ID, 2) })
	test.True(t, before.alive(), test.Sprint("an update in place ended the task"))

	j.TaskGroups[0].Count = new(1)
	j.TaskGroups[0].Tasks[0].Env["GREETING"] = "two" // destructive
	n.Client().Jobs().Register(j, nil)
	testsupport.Within(t, time.Minute, func() error {
		list, _, err := n.Client().Jobs().Allocations(*j.ID, false, nil)
		if err != nil {
			return err
		}
		for _, s := range list {
			b := &alloc{n: n, id: s.ID, job: *j.ID}
			if out, _ := b.read("stdout"); s.ClientStatus == "running" && out == "two\n" {
				return nil
			}
		}
		return fmt.Errorf("no allocation says two")
	})
	test.NoError(t, testsupport.Poll(time.Minute, func() error {
		if before.alive() {
			return fmt.Errorf("the old task lives")
		}
		return n.countRunning(*j.ID, 1)
	}))
	_, _, err := n.Client().Jobs().Deregister(*j.ID, false, nil)
	test.NoError(t, err)
}

func (n *node) countRunning(job string, want int) error {
	list, _, err := n.Client().Jobs().Allocations(job, false, nil)
	if err != nil {
		return err
	}
	running := 0
	for _, s := range list {
		if s.ClientStatus == "running" {
			running++
		}
	}
	if running != want {
		return fmt.Errorf("%d allocations run, want %d", running, want)
	}
	return nil
}

func TestOutput_IsNotCollectedIfDisabled(t *testing.T) {
	t.Parallel()
	a := common(t).submit(t, job(t, sh(`echo nobody reads this; exit 4`), func(_ *api.Job, task *api.Task) {
		task.LogConfig.Disabled = new(true)
	}))
	test.Eq(t, "exit 4", a.ended(t))
	files, _ := filepath.Glob(a.dir() + "/alloc/logs/main.*")
	test.SliceEmpty(t, files, test.Sprint("there are log files"))
}

func TestTask_IsKilledAtMemoryLimit(t *testing.T) {
	needMemoryCgroup(t)
	t.Parallel()
	a := common(t).submit(t, job(t, conf{"command": counter, "args": []string{"-lines", "3", "-then", "oom"}}))
	if got := a.ended(t); got != "oom" {
		t.Errorf("got %s: %s", got, a.story())
	}
	test.NoError(t, a.tells("OOM: killed at 32 MiB of memory"))
	_, ended, err := numbered(a.output(t, "stdout"))
	must.NoError(t, err, must.Sprint("output"))
	test.True(t, ended, test.Sprint("output"))
}

// tasksOf lists the state directories of an allocation's runs.
func (n *node) tasksOf(allocID string) []string {
	var dirs []string
	for _, d := range n.taskDirs() {
		if b, err := os.ReadFile(filepath.Join(d, "task.json")); err == nil &&
			strings.Contains(string(b), `"id":"`+allocID+`/`) {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// agentUser is the id of the user that the agent, and a task without a user, runs as.
func agentUser() string {
	return fmt.Sprint(os.Geteuid())
}

// needRootAgent skips where the agent is not root.
func needRootAgent(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs an agent that is root")
	}
}

func needMemoryCgroup(t testing.TB) {
	t.Helper()
	if !hasMemoryCgroup() {
		t.Skip("needs a memory cgroup and the right to use it")
	}
}

func hasMemoryCgroup() bool {
	if os.Geteuid() != 0 {
		return false
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); err == nil {
		return true
	}
	b, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	return strings.Contains(string(b), "memory")
}
