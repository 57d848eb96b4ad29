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
)

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
