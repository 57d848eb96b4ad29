// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// quiet returns a lab in a temporary directory, which prints into the buffer and finds no Docker.
func quiet(t *testing.T) (*Lab, *bytes.Buffer) {
	var b bytes.Buffer
	dir := t.TempDir()
	return &Lab{
		root: dir, dir: filepath.Join(dir, ".lab"), runtime: auto,
		steps: term.New(&b), out: &b, errOut: &b,
		docker: func(context.Context) error { return errors.New("no daemon") },
	}, &b
}

func TestNew_AcceptsThreeRuntimes(t *testing.T) {
	for in, want := range map[string]agent.Runtime{
		"": auto, "auto": auto, "host": agent.Host, "container": agent.Container,
	} {
		t.Setenv("LAB_RUNTIME", in)
		got, err := New()
		must.NoError(t, err, must.Sprint(in))
		test.Eq(t, want, got.runtime, test.Sprint(in))
	}
	t.Setenv("LAB_RUNTIME", "vm")
	_, err := New()
	test.ErrorContains(t, err, `unknown LAB_RUNTIME "vm": want auto, host or container`)
}

func TestChooseRuntime_FollowsDockerAndTheRequest(t *testing.T) {
	no := errors.New("broken")
	const noContainer = "datasets, SSH hosts and several nodes do not work in a container: run " + mage +
		" lab:down, then lab:up with LAB_RUNTIME=host"
	for _, tc := range []struct {
		name     string
		asked    agent.Runtime
		docker   error
		want     agent.Runtime
		why, err string
		dataset  bool
		nodes    int
		up       agent.Runtime // runtime of the lab, if it is up
	}{
		{name: "datasets", asked: auto, dataset: true, want: agent.Host, why: "which datasets"},
		{name: "datasets in a container", asked: agent.Container, dataset: true,
			err: noContainer},
		{name: "several nodes", asked: auto, nodes: 3, want: agent.Host, why: "SSH hosts and several nodes need"},
		{name: "docker answers", asked: auto, want: agent.Container, why: "from outrider-lab:"},
		{name: "no docker", asked: auto, docker: no, want: agent.Host, why: "since broken"},
		{name: "the host is requested", asked: agent.Host, want: agent.Host, why: "as requested"},
		{name: "a container is requested without docker", asked: agent.Container, docker: no,
			err: "failed to use a container (LAB_RUNTIME=container): broken"},
		{name: "a lab that is up", asked: auto, docker: no, up: agent.Container, want: agent.Container, why: "as before"},
		{name: "datasets in a container that is up", asked: auto, up: agent.Container, dataset: true,
			err: noContainer},
		{name: "another runtime", asked: agent.Host, up: agent.Container,
			err: "the lab already uses runtime container; first stop it with: " + mage + " lab:down"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, _ := quiet(t)
			l.runtime, l.dataset, l.nodes = tc.asked, tc.dataset, tc.nodes
			l.docker = func(context.Context) error { return tc.docker }
			var up agent.Agent
			if tc.up != "" {
				up = &described{info: agent.Info{Runtime: tc.up}}
			}
			got, why, err := l.chooseRuntime(t.Context(), up)
			if tc.err != "" {
				test.EqError(t, err, tc.err, test.Sprint("error"))
				return
			}
			must.NoError(t, err)
			must.Eq(t, tc.want, got)
			test.StrContains(t, why, tc.why)
		})
	}
}

func TestLab_ReportsThatNoLabIsUp(t *testing.T) {
	l, out := quiet(t)
	err := l.Down(t.Context())
	must.NoError(t, err, must.Sprintf("down: %v, %s", err, out))
	test.StrContains(t, out.String(), "nothing to do", test.Sprintf("down: %v, %s", err, out))
	err = l.Status(t.Context())
	must.NoError(t, err, must.Sprintf("status: %v, %s", err, out))
	test.StrContains(t, out.String(), "mage lab:up", test.Sprintf("status: %v, %s", err, out))
	out.Reset()
	must.NoError(t, l.StatusJSON(t.Context()))
	test.Eq(t, "{\n  \"up\": false\n}\n", out.String())
	for name, f := range map[string]func(context.Context) error{
		"shell":  l.Shell,
		"logs":   func(ctx context.Context) error { return l.Logs(ctx, "") },
		"stop":   func(ctx context.Context) error { return l.Stop(ctx, "x") },
		"reload": l.Reload,
	} {
		test.ErrorIs(t, f(t.Context()), errDown, test.Sprint(name))
	}
	err = l.Run(t.Context(), "missing.nomad.hcl")
	must.ErrorIs(t, err, fs.ErrNotExist, must.Sprintf("run of a file that does not exist: %v\n%s", err, out))
	test.StrNotContains(t, out.String(), "starting",
		test.Sprintf("run of a file that does not exist: %v\n%s", err, out))
}

func TestChoose_CombinesOptionsWithARunningLab(t *testing.T) {
	for _, tc := range []struct {
		name            string
		with            With
		had             []string // subdirectories of the running lab
		dataset, remote bool
		err             string
	}{
		{name: "a new lab"},
		{name: "requested", with: With{USB: "sim", Dataset: "zfs-fuse", Remote: "sim", Nodes: 3},
			dataset: true, remote: true},
		{name: "as before", had: []string{"pool", "sshd"}, dataset: true, remote: true},
		{name: "another stick", with: With{USB: "real"}, err: "-usb=sim"},
		{name: "another pool", with: With{Dataset: "zfs"}, err: "-dataset=zfs-fuse"},
		{name: "another host", with: With{Remote: "ssh"}, err: "-remote=sim"},
		{name: "too many", with: With{Nodes: 10}, err: "want 1 to 9"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, _ := quiet(t)
			for _, dir := range tc.had {
				must.NoError(t, os.MkdirAll(filepath.Join(l.dir, dir), 0o755))
			}
			err := l.choose(tc.with)
			if tc.err != "" {
				test.ErrorContains(t, err, tc.err)
				return
			}
			must.NoError(t, err)
			test.Eq(t, tc.dataset, l.dataset)
			test.Eq(t, tc.remote, l.remote)
			test.Eq(t, tc.remote, l.nodes == 3)
		})
	}
}

func TestEvents_OmitsUsualEvents(t *testing.T) {
	l, out := quiet(t)
	r := newRun(l, &described{}, &api.Job{ID: new("j")})
	r.events("a", "t", &api.TaskState{Events: []*api.TaskEvent{
		{Type: api.TaskReceived, DisplayMessage: "Task received by client"},
		{Type: api.TaskDriverMessage, DisplayMessage: "ValueError: no such city"},
		{Type: api.TaskTerminated, ExitCode: 1, DisplayMessage: "Exit Code: 1"},
		{Type: api.TaskTerminated, DisplayMessage: "Exit Code: 0"},
	}})
	test.Eq(t, "- t | Driver: ValueError: no such city\n- t | Terminated: Exit Code: 1\n", out.String())
}

func TestParseJob_ReportsErrorsWithFileName(t *testing.T) {
	program, err := nomad.Binary(t.Context(), t.Logf)
	must.NoError(t, err)
	a := &described{info: agent.Info{Binary: program}}
	t.Setenv("NOMAD_ADDR", "http://nowhere.invalid")
	path := filepath.Join(t.TempDir(), "mine.nomad.hcl")
	text := "job \"a\" {\n  kind = \"x\"\n  group \"g\" {\n    colour = 1\n  }\n}\n"
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	_, err = parseJob(t.Context(), a, path)
	test.ErrorContains(t, err, "mine.nomad.hcl:2,3-7: ")
	must.NoError(t, os.WriteFile(path, []byte("job \"a\" {\n  group \"g\" {}\n}\n"), 0o600))
	job, err := parseJob(t.Context(), a, path)
	must.NoError(t, err)
	test.Eq(t, "a", *job.ID)
	test.Eq(t, api.DefaultNamespace, *job.Namespace)
}

func TestShell_HasTheAgentsAddress(t *testing.T) {
	a := &described{info: agent.Info{Runtime: agent.Container, Container: "c1"}}
	t.Setenv("PATH", t.TempDir())
	_, err := In(a, true, nil, "bash")
	test.ErrorContains(t, err, "the docker command is missing")
	must.NoError(t, os.Symlink("/bin/true", filepath.Join(os.Getenv("PATH"), "docker")))
	for terminal, want := range map[bool]string{
		false: "docker exec -i -e A=b -e NOMAD_ADDR=http://127.0.0.1:4747 c1 bash",
		true:  "docker exec -i -t -e A=b -e NOMAD_ADDR=http://127.0.0.1:4747 c1 bash",
	} {
		cmd, err := In(a, terminal, []string{"A=b"}, "bash")
		must.NoError(t, err)
		test.Eq(t, want, strings.Join(cmd.Args, " "))
	}
}

// described is an agent without a process, which returns info. Alive returns ended.
type described struct {
	agent.Agent
	info  agent.Info
	ended error
}

func (d *described) Client() *api.Client { return nil }

func (d *described) Alive(context.Context) error { return d.ended }

func (d *described) Info() agent.Info { return d.info }
func (d *described) Address() string  { return "http://127.0.0.1:4747" }
