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

// TestTask_DoesWhatItsJobAsks has a row for each way that is no option of the driver.
func TestTask_DoesWhatItsJobAsks(t *testing.T) {
	t.Parallel()
	n := common(t)
	for _, row := range []struct {
		name   string
		c      conf
		edit   func(*api.Job, *api.Task)
		do     func(*alloc) error // while it runs
		want   string
		output string
	}{
		{name: "a code like that of a shell", c: sh("exit 143"), want: "exit 143"},
		{name: "a crash", c: sh("kill -SEGV $$"), want: "signal 11"},
		{name: "a signal through the API",
			c: sh("trap 'echo heard; exit 3' USR1; echo ready; while :; do sleep 0.1; done"),
			do: func(a *alloc) error {
				a.says(t, "stdout", "ready\n")
				return n.Client().Allocations().Signal(a.stub(t), nil, "main", "SIGUSR1")
			},
			want: "exit 3", output: "ready\nheard\n"},
		{name: "a template as the command", c: conf{"command": "local/program", "args": []string{"x"}},
			edit: func(_ *api.Job, task *api.Task) {
				task.Templates = []*api.Template{{DestPath: new("local/program"), Perms: new("755"),
					EmbeddedTmpl: new("#!/bin/sh\necho $1 {{ env \"NOMAD_TASK_NAME\" }}\nexit 3\n")}}
			},
			want: "exit 3", output: "x main\n"},
		{name: "a dispatch", c: sh(`cat local/payload; echo "$NOMAD_META_word"; exit 4`),
			edit: func(j *api.Job, task *api.Task) {
				j.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "required", MetaRequired: []string{"word"}}
				task.DispatchPayload = &api.DispatchPayloadConfig{File: "payload"}
			},
			want: "exit 4", output: "of the payload\nof the meta\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			j := job(t, row.c)
			if row.edit != nil {
				row.edit(j, j.TaskGroups[0].Tasks[0])
			}
			var a *alloc
			if j.ParameterizedJob == nil {
				a = n.submit(t, j)
			} else {
				_, _, err := n.Client().Jobs().Register(j, nil)
				must.NoError(t, err)
				d, _, err := n.Client().Jobs().Dispatch(*j.ID, map[string]string{"word": "of the meta"},
					[]byte("of the payload\n"), "", nil)
				must.NoError(t, err)
				a = &alloc{n: n, job: d.DispatchedJobID, id: n.placed(t, d.DispatchedJobID)}
			}
			if row.do != nil {
				must.NoError(t, row.do(a))
			}
			test.Eq(t, row.want, a.ended(t), test.Sprint(a.story()))
			test.Eq(t, row.output, a.output(t, "stdout"))
		})
	}
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
