// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
	"github.com/outrider-dev/outrider/lab/agent"
)

func TestMakeHost_KeepsPortAndKeyOfARunningLab(t *testing.T) {
	l, _ := quiet(t)
	l.remote = true
	first, err := l.makeHost(t.Context())
	if errors.Is(err, sshd.ErrMissing) {
		test.ErrorContains(t, err, "apt-get install openssh-server")
		test.False(t, testsupport.Exists(l.dir), test.Sprint("the lab's directory still exists"))
		t.Skip(err)
	}
	must.NoError(t, err)
	st, err := os.Stat(filepath.Join(l.dir, "sshd"))
	must.NoError(t, err)
	test.Eq(t, os.ModeDir|0o700, st.Mode(), test.Sprint("the directory with the keys"))

	info := `{"runtime": "host", "dir": "` + l.dir + `", "http_port": 1}`
	must.NoError(t, os.WriteFile(filepath.Join(l.dir, "agent.json"), []byte(info), 0o600))
	a, err := agent.Open(t.Context(), l.dir)
	must.NoError(t, err)
	l.host = first
	config, err := l.remoteConfig(a)
	must.NoError(t, err)
	for _, want := range []string{`endpoint "box"`, `"` + a.StateDir() + `/host"`, first.KeyFile, first.HostKey} {
		test.StrContains(t, config, want)
	}

	again, err := l.makeHost(t.Context())
	must.NoError(t, err)
	test.Eq(t, first.Port, again.Port, test.Sprint("the port of the running lab"))
	test.Eq(t, first.HostKey, again.HostKey, test.Sprint("the key of the running lab"))
}

// TestLab_RunsWithAnSSHHost follows docs/start/lab.md. Two nodes reach the SSH host. When one is drained, the example's
// task keeps running.
func TestLab_RunsWithAnSSHHost(t *testing.T) {
	testsupport.Long(t, "starts its own lab")
	l, out := live(t)
	does := func(want string, f func() error) {
		t.Helper()
		out.Reset()
		must.NoError(t, f(), must.Sprint(out))
		must.StrContains(t, out.String(), want)
	}
	ctx := t.Context()
	example := filepath.Join(l.root, "plugins/remote/example/counter.nomad.hcl")
	does("Ready in", func() error { return l.Up(ctx, With{}) })
	test.ErrorContains(t, l.Run(ctx, example), "endpoint.box.healthy", test.Sprint("a lab without a host"))
	if err := l.Up(ctx, With{Remote: "sim"}); errors.Is(err, sshd.ErrMissing) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l.isDownAfter(t, func() {
		does("1 on ", func() error { return l.Run(ctx, example) })
		does("  node-2  ", func() error { return l.Status(ctx) })
		test.StrContains(t, out.String(), "  node-3  ")
		does("Restarting the agent with the new build", func() error { return l.Up(ctx, With{}) })
		does("Starting more nodes", func() error { return l.Reload(ctx) })
		does("is stopped", func() error { return l.Stop(ctx, hostJob) })
		does("Starting the host", func() error { return l.Up(ctx, With{}) })
		does("Job counter runs.", func() error { return l.Run(ctx, example) })

		a, err := l.open(ctx)
		must.NoError(t, err)
		before := placedOn(t, a, "counter")
		_, err = a.Client().Nodes().UpdateDrain(before.NodeID, &api.DrainSpec{Deadline: time.Minute}, false, nil)
		must.NoError(t, err)
		var after *api.AllocationListStub
		testsupport.Eventually(t, "the job runs on the other node", func() bool {
			after = placedOn(t, a, "counter")
			return after != nil && after.NodeID != before.NodeID
		})
		test.SliceContainsAll(t, []string{"node-2", "node-3"}, []string{before.NodeName, after.NodeName})
		testsupport.Eventually(t, "the same process keeps running", func() bool {
			after = placedOn(t, a, "counter")
			return slices.ContainsFunc(after.TaskStates["count"].Events, func(e *api.TaskEvent) bool {
				return strings.Contains(e.DisplayMessage, "Took over the running task of allocation "+before.ID)
			})
		})
		nodes, err := Nodes(ctx, l.dir)
		must.NoError(t, err)
		must.NoError(t, nodes[before.NodeName].Kill(ctx))
	})

	// Now lab:down itself must end the tasks: killed agents stop no jobs, and a killed node does not report ended tasks.
	does("Ready in", func() error { return l.Up(ctx, With{Remote: "sim"}) })
	l.isDownAfter(t, func() {
		does("1 on ", func() error { return l.Run(ctx, example) })
		nodes, err := Nodes(ctx, l.dir)
		must.NoError(t, err)
		for _, n := range nodes {
			must.NoError(t, n.Kill(ctx))
		}
		does("Restarting the agent with the new build", func() error { return l.Up(ctx, With{}) })
		test.StrNotContains(t, out.String(), "has ended")
		must.NoError(t, nodes["node-2"].Kill(ctx))
		a, err := l.open(ctx)
		must.NoError(t, err)
		must.NoError(t, a.Kill(ctx))
	})
}

// TestLab_RunsWithSeveralNodes runs a job on three nodes, and reloads a plugin on all of them.
func TestLab_RunsWithSeveralNodes(t *testing.T) {
	testsupport.Long(t, "starts three agents")
	l, out := live(t)
	ctx := t.Context()
	must.NoError(t, l.Up(ctx, With{Nodes: 3}), must.Sprint(out))
	stopped := filepath.Join(t.TempDir(), "stopped-")
	must.NoError(t, os.Chmod(filepath.Dir(stopped), 0o777)) // tasks may run as any user
	path := jobFile(t, "service", "spread", "exec-lite", "trap 'echo >"+stopped+"$NOMAD_ALLOC_INDEX; exit' INT TERM; "+
		"echo up; while :; do sleep 0.2; done")
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	three := strings.Replace(string(text), `group "g" {`, `group "g" {
    count = 3
    constraint {
      distinct_hosts = true
    }`, 1)
	must.NoError(t, os.WriteFile(path, []byte(three), 0o600))
	must.NoError(t, l.Run(ctx, path), must.Sprint(out))
	a, err := l.open(ctx)
	must.NoError(t, err)
	before := running(t, a)
	must.MapLen(t, 3, before)
	must.NoError(t, l.Reload(ctx), must.Sprint(out))
	test.Eq(t, before, running(t, a), test.Sprint("a task has ended, or was started again"))
	out.Reset()
	must.NoError(t, l.Status(ctx))
	for _, node := range []string{"outrider-lab", "node-2", "node-3"} {
		test.StrContains(t, out.String(), "  "+node+"  ")
	}
	nodes, err := Nodes(ctx, l.dir)
	must.NoError(t, err)
	must.MapLen(t, 2, nodes)
	must.NoError(t, nodes["node-2"].Kill(ctx))
	must.NoError(t, l.Up(ctx, With{}), must.Sprint(out))
	nodes, err = Nodes(ctx, l.dir)
	must.NoError(t, err)
	test.NoError(t, nodes["node-2"].Alive(ctx), test.Sprint("lab:up has not started the node again"))
	must.NoError(t, l.Down(ctx))
	files, err := filepath.Glob(stopped + "*")
	must.NoError(t, err)
	test.SliceLen(t, 3, files, test.Sprint("tasks that were asked to end"))
	for name, n := range nodes {
		left, err := agent.Processes(n.Info().Dir)
		must.NoError(t, err)
		test.SliceEmpty(t, left, test.Sprintf("processes of %s", name))
	}
}

// placedOn returns the running allocation of a job, unless it is being stopped, or nil.
func placedOn(t *testing.T, a agent.Agent, job string) *api.AllocationListStub {
	t.Helper()
	allocs, _, err := a.Client().Jobs().Allocations(job, false, nil)
	must.NoError(t, err)
	for _, alloc := range allocs {
		if alloc.DesiredStatus == api.AllocDesiredStatusRun && alloc.ClientStatus == api.AllocClientStatusRunning {
			return alloc
		}
	}
	return nil
}

// isDownAfter calls f, and then checks that lab:down leaves no process, directory or cgroup of a lab with an SSH host.
func (l *Lab) isDownAfter(t *testing.T, f func()) {
	t.Helper()
	ctx := t.Context()
	a, err := l.open(ctx)
	must.NoError(t, err)
	agents, err := Nodes(ctx, l.dir)
	must.NoError(t, err)
	must.MapLen(t, 2, agents)
	agents["the lab's"] = a
	patterns := []string{fmt.Sprintf("outrider-tasks-%.4x*", sha256.Sum256([]byte(filepath.Join(a.StateDir(), "host"))))}
	for _, a := range agents {
		id, err := os.ReadFile(filepath.Join(a.DataDir(), "client", "client-id"))
		must.NoError(t, err)
		patterns = append(patterns, fmt.Sprintf("outrider-*-%.8s*", id))
	}

	f()
	must.NoError(t, l.Down(ctx))
	for name, a := range agents {
		left, err := agent.Processes(a.Info().Dir)
		must.NoError(t, err)
		test.SliceEmpty(t, left, test.Sprintf("processes of %s agent", name))
		for _, dir := range []string{a.Info().Dir, a.StateDir()} {
			test.False(t, testsupport.Exists(dir), test.Sprintf("%s still exists", dir))
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, _ fs.DirEntry, err error) error {
		for _, p := range patterns {
			if matches, _ := filepath.Match(p, filepath.Base(path)); matches {
				t.Errorf("cgroup %s still exists", path)
			}
		}
		return nil
	})
	must.NoError(t, err)
}
