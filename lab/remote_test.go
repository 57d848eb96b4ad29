// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
	"github.com/outrider-dev/outrider/lab/agent"
)

func TestRemote_IsAsAskedForOrAsBefore(t *testing.T) {
	for in, want := range map[string]remote{"": remoteAsBefore, "none": remoteNone, "sim": remoteSim} {
		got, err := parseRemote(in)
		must.NoError(t, err, must.Sprint(in))
		test.Eq(t, want, got, test.Sprint(in))
	}
	_, err := parseRemote("ssh")
	test.ErrorContains(t, err, "want none", test.Sprint("a wrong one"))
	r, err := remoteAsBefore.chosen(t.Context(), t.TempDir())
	test.NoError(t, err)
	test.Eq(t, remoteNone, r, test.Sprint("a new lab has"))
	up := t.TempDir()
	info := `{"runtime": "host", "dir": "` + up + `", "http_port": 1, "labels": {"remote": "sim", "remote_port": "7"}}`
	must.NoError(t, os.WriteFile(filepath.Join(up, "agent.json"), []byte(info), 0o600))
	r, err = remoteAsBefore.chosen(t.Context(), up)
	test.NoError(t, err)
	test.Eq(t, remoteSim, r)
	_, err = remoteNone.chosen(t.Context(), up)
	test.ErrorContains(t, err, "the lab is up, and has a host", test.Sprint("tasks would lose their host"))
}

func TestPrepare_RefusesAHostInAContainer(t *testing.T) {
	l, _ := quiet(t)
	l.docker = func(context.Context) error { return nil }
	l.runtime, l.remote = agent.Container, remoteSim
	_, err := l.prepare(t.Context())
	test.ErrorContains(t, err, "a container has no SSH server")
	test.ErrorContains(t, err, "lab:up -runtime=host -remote=sim")
}

func TestMakeHost_IsTheSameForTheRunningLab(t *testing.T) {
	l, _ := quiet(t)
	l.remote = remoteSim
	first, err := l.makeHost(t.Context())
	if errors.Is(err, sshd.ErrMissing) {
		test.ErrorContains(t, err, "apt-get install openssh-server")
		test.False(t, testsupport.Exists(l.dir), test.Sprint("the lab's directory is left"))
		t.Skip(err)
	}
	if os.Geteuid() == 0 && !agent.Privileged() {
		test.ErrorContains(t, err, "runs as nobody")
		return
	}
	must.NoError(t, err)
	st, err := os.Stat(filepath.Join(l.dir, "sshd"))
	must.NoError(t, err)
	test.Eq(t, os.ModeDir|0o700, st.Mode(), test.Sprint("the directory with the keys"))

	l.host = first
	config, err := l.remoteConfig()
	must.NoError(t, err)
	for _, want := range []string{`endpoint "box"`, `dir = "${state_dir}/host"`, first.KeyFile, first.HostKey} {
		test.StrContains(t, config, want)
	}

	info := `{"runtime": "host", "dir": "` + l.dir + `", "http_port": 1, "labels": {"remote": "sim", "remote_port": "7"}}`
	must.NoError(t, os.WriteFile(filepath.Join(l.dir, "agent.json"), []byte(info), 0o600))
	again, err := l.makeHost(t.Context())
	must.NoError(t, err)
	test.Eq(t, 7, again.port, test.Sprint("the port of the running lab"))
	test.Eq(t, first.HostKey, again.HostKey, test.Sprint("the key of the running lab"))
}

func TestOnHost_FindsTheDriver(t *testing.T) {
	group := func(drivers ...string) *api.TaskGroup {
		g := api.NewTaskGroup("g", 1)
		for _, d := range drivers {
			g.AddTask(api.NewTask("of-"+d, d))
		}
		return g
	}
	test.True(t, onHost(group("exec-lite", "remote")))
	test.False(t, onHost(group("exec-lite", "python")))
}

// TestLab_WithAHost takes the way of docs/remote.md: the example runs on a host, whose end is in order.
func TestLab_WithAHost(t *testing.T) {
	testsupport.Long(t, "starts a lab of its own")
	l, out := live(t)
	does := func(want string, f func() error) {
		t.Helper()
		out.Reset()
		must.NoError(t, f(), must.Sprint(out))
		must.StrContains(t, out.String(), want)
	}
	ctx := t.Context()
	if err := l.Up(ctx, With{Remote: "sim"}); errors.Is(err, sshd.ErrMissing) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	test.StrContains(t, out.String(), "lab:run plugins/remote/example/counter.nomad.hcl")
	a, err := l.open(ctx)
	must.NoError(t, err)

	example := filepath.Join(l.root, "plugins/remote/example/counter.nomad.hcl")
	does("1 on ", func() error { return l.Run(ctx, example) })
	does("Host     box, by SSH to 127.0.0.1:", func() error { return l.Status(ctx) })
	does("is up already", func() error { return l.Up(ctx, With{}) })
	does("lived on.", func() error { return l.Reload(ctx, remoteDriver) })
	does("its tasks run on", func() error { return l.Stop(ctx, hostJob) })
	does("Starting the host", func() error { return l.Up(ctx, With{}) })
	does("runs already, unchanged", func() error { return l.Run(ctx, example) })
	test.ErrorContains(t, l.Up(ctx, With{Remote: "none"}), "the lab is up, and has a host")

	does("they are gone, with their files", func() error { return l.Down(ctx) })
	leavesNothing(t, a)

	// an agent that has ended stops no job
	does("Ready in", func() error { return l.Up(ctx, With{Remote: "sim"}) })
	does("1 on ", func() error { return l.Run(ctx, example) })
	a, err = l.open(ctx)
	must.NoError(t, err)
	must.NoError(t, a.Kill(ctx))
	does("they are gone, with their files", func() error { return l.Down(ctx) })
	leavesNothing(t, a)
}

// leavesNothing checks that nothing of a lab with a host is left.
func leavesNothing(t *testing.T, a agent.Agent) {
	t.Helper()
	left, err := a.Leftovers(t.Context())
	must.NoError(t, err)
	test.SliceEmpty(t, left, test.Sprint("left"))
	for _, dir := range []string{a.Info().Dir, a.StateDir()} {
		test.False(t, testsupport.Exists(dir), test.Sprintf("%s is left", dir))
	}
	cgroup := fmt.Sprintf("outrider-remote-%.4x*", sha256.Sum256([]byte(filepath.Join(a.StateDir(), "host"))))
	for _, pattern := range []string{"/sys/fs/cgroup/" + cgroup, "/sys/fs/cgroup/*/" + cgroup} { // v2, v1
		dirs, err := filepath.Glob(pattern)
		must.NoError(t, err)
		test.SliceEmpty(t, dirs, test.Sprint("cgroups of tasks on the host are left"))
	}
}
