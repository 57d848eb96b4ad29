// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/remotehost"
)

// A public key that is nobody's.
const nobodysKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

// inputs is one agent whose endpoints are a host, and the same host by mistaken blocks.
type inputs struct {
	agent.Agent
	plugin string
	config string // file with the plugin's configuration
	dir    string
}

func newInputs(t *testing.T) *inputs {
	t.Helper()
	plugin, err := remotePlugin()
	must.NoError(t, err)
	x := &inputs{plugin: plugin, dir: mkdir(t)}
	for name, size := range map[string]string{"noexec": "64m", "full": "64k"} {
		at := filepath.Join(x.dir, name) // the host has this machine's file systems, but for a few
		must.NoError(t, os.Mkdir(at, 0o777))
		flags := uintptr(0)
		if name == "noexec" {
			flags = unix.MS_NOEXEC
		}
		if err := unix.Mount("tmpfs", at, "tmpfs", flags, "mode=1777,size="+size); errors.Is(err, unix.EPERM) {
			t.Skip("needs the right to mount file systems")
		} else {
			must.NoError(t, err)
		}
		t.Cleanup(func() { test.NoError(t, unix.Unmount(at, 0)) })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	host, err := remotehost.Start(ctx, plugin, filepath.Join(x.dir, "host"), "box")
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, end(host.Process)) })

	// the block with another value of one option, as another endpoint
	blocks := []string{host.Block}
	with := func(name, option, value string) {
		block := strings.Replace(host.Block, `"box"`, fmt.Sprintf("%q", name), 1)
		var lines []string
		for line := range strings.Lines(block) {
			if fields := strings.Fields(line); len(fields) > 0 && fields[0] == option {
				continue
			}
			lines = append(lines, line)
			if strings.Contains(line, "ssh {") {
				lines = append(lines, value+"\n")
			}
		}
		blocks = append(blocks, strings.Join(lines, ""))
	}
	open := filepath.Join(x.dir, "open_key")
	key, err := os.ReadFile(host.Option("key_file"))
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(open, key, 0o644))
	strangers := filepath.Join(x.dir, "known_hosts")
	must.NoError(t, os.WriteFile(strangers, []byte("elsewhere.example.com "+nobodysKey+"\n"), 0o644))
	with("changed", "host_keys", fmt.Sprintf("host_keys = [%q]", nobodysKey))
	with("stranger", "host_keys", fmt.Sprintf("known_hosts_file = %q", strangers))
	with("away", "port", "port = 1")
	with("nouser", "user", `user = "nobody-here"`)
	with("nokey", "key_file", fmt.Sprintf("key_file = %q", filepath.Join(x.dir, "no_key")))
	with("openkey", "key_file", fmt.Sprintf("key_file = %q", open))
	with("noexec", "state_dir", fmt.Sprintf("state_dir = %q", filepath.Join(x.dir, "noexec/state")))
	with("full", "state_dir", fmt.Sprintf("state_dir = %q", filepath.Join(x.dir, "full/state")))
	blocks = append(blocks, `endpoint "nodocker" {
  docker {
    host = "unix:///nowhere/docker.sock"
  }
}
`)
	config := strings.Join(blocks, "") + fmt.Sprintf("api {\n  address = \"http://127.0.0.1:${http_port}\"\n  token_file = %q\n}\n",
		filepath.Join(x.dir, "token"))
	must.NoError(t, os.WriteFile(filepath.Join(x.dir, "token"), []byte(management), 0o600))
	x.Agent, err = agent.Run(ctx, agent.Options{
		Dir: filepath.Join(x.dir, "a"), Token: management, Progress: t.Logf,
		Plugins: []agent.Plugin{{Binary: plugin, Config: config}},
	})
	must.NoError(t, err)
	t.Cleanup(func() {
		test.NoError(t, x.Close(context.Background()))
		left, err := x.Leftovers(context.Background())
		test.NoError(t, err)
		test.SliceEmpty(t, left)
	})
	x.config = filepath.Join(x.dir, "plugin.hcl")
	config = strings.ReplaceAll(config, "${http_port}", fmt.Sprint(x.Info().HTTP))
	must.NoError(t, os.WriteFile(x.config, []byte(config), 0o600))
	return x
}

// command runs a command of the plugin as a person does.
func (x *inputs) command(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, x.plugin, append([]string{argv[0], "-config", x.config}, argv[1:]...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// job has one task, which is tried once.
func (x *inputs) job(id string, config map[string]any, edit func(*api.Task)) *api.Job {
	task := api.NewTask("main", "remote")
	task.Config = config
	task.Resources = &api.Resources{CPU: new(10), MemoryMB: new(10)}
	if edit != nil {
		edit(task)
	}
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail"), Interval: new(time.Minute),
		Delay: new(time.Second)}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	j := api.NewBatchJob(id, id, "global", 50)
	j.Datacenters = []string{"*"}
	return j.AddTaskGroup(group)
}

// ended waits for the end of a job's allocation, and returns the messages of a kind among its events.
func (x *inputs) ended(t *testing.T, id, kind string) (said []string) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		list, _, err := x.Client().Jobs().Allocations(id, true, nil)
		if err != nil {
			return err
		}
		if len(list) == 0 || list[0].ClientStatus != api.AllocClientStatusFailed && list[0].ClientStatus != "complete" {
			return fmt.Errorf("%s has not ended", id)
		}
		said = nil
		for _, e := range list[0].TaskStates["main"].Events {
			if e.Type == kind {
				said = append(said, e.DisplayMessage)
			}
		}
		return nil
	})
	return said
}

func TestInput_MistakeIsOneSentence(t *testing.T) {
	x := newInputs(t)
	at := func(name string) map[string]any { return map[string]any{"endpoint": name, "command": "/bin/true"} }
	with := func(c map[string]any, option string, value any) map[string]any {
		c[option] = value
		return c
	}
	missing := filepath.Join(x.dir, "missing") // nothing may make it
	t.Cleanup(func() { test.FileNotExists(t, missing) })
	rows := []struct {
		name   string
		config map[string]any
		edit   func(*api.Task)
		want   string
	}{
		{"unknown endpoint", at("nowhere"), nil, `endpoint "nowhere" is not known: this node has "away", "box", "changed"`},
		{"changed host key", at("changed"), nil, "the host key of 127.0.0.1:"},
		{"unknown host key", at("stranger"), nil, "known_hosts"},
		{"no server", at("away"), nil, "no SSH server listens at 127.0.0.1:1"},
		{"unknown user", at("nouser"), nil, "refuses user nobody-here with the key of "},
		{"no key", at("nokey"), nil, "/no_key"},
		{"key for all to read", at("openkey"), nil, "open_key"},
		{"noexec state_dir", at("noexec"), nil, "which is mounted noexec: set state_dir to"},
		{"no space", at("full"), nil, "has no space for the shim"},
		{"no engine", map[string]any{"endpoint": "nodocker", "image": "x"}, nil, "/nowhere/docker.sock"},
		{"image on ssh", with(at("box"), "image", "x"), nil, `image is an option for docker, and endpoint "box" is ssh`},
		{"command on docker", with(at("nodocker"), "image", "x"), nil, `command is an option for ssh, and endpoint "nodocker"`},
		{"no command", map[string]any{"endpoint": "box"}, nil, `command is missing: endpoint "box" is ssh`},
		{"no image", map[string]any{"endpoint": "nodocker"}, nil, `image is missing: endpoint "nodocker" is docker`},
		{"no such program", map[string]any{"endpoint": "box", "command": missing}, nil, missing},
		{"no such work_dir", with(at("box"), "work_dir", missing), nil, missing},
		{"port of no number", with(at("box"), "ports", []map[string]any{{"http": "web"}}), nil, `ports http = "web" is not a port`},
		{"unknown signal", with(at("box"), "kill", []map[string]any{{"signal": "SIGX"}}), nil, `kill: signal "SIGX" is not known`},
		{"on_drain of no meaning", with(at("box"), "on_drain", "keep"), nil, `on_drain "keep" is not known: use "release" or "stop"`},
		{"relative mount", with(map[string]any{"endpoint": "nodocker", "image": "x"}, "mount",
			[]map[string]any{{"source": "data", "target": "/data"}}), nil, `mount[0]: source "data" is not absolute`},
		{"unknown user of the task", at("box"), func(task *api.Task) { task.User = "nobody-here" }, "nobody-here"},
	}
	for i, r := range rows {
		_, _, err := x.Client().Jobs().Register(x.job(fmt.Sprintf("bad%d", i), r.config, r.edit), nil)
		must.NoError(t, err, must.Sprint(r.name))
	}
	for i, r := range rows {
		said := x.ended(t, fmt.Sprintf("bad%d", i), api.TaskDriverFailure)
		if len(said) != 1 || !strings.Contains(said[0], r.want) || strings.Contains(said[0], "\n") {
			t.Errorf("%s: got %q, want one sentence with %q", r.name, said, r.want)
		}
		t.Logf("%s: %s", r.name, said)
	}

	out, err := x.command(t, "list", "-json", "box")
	must.NoError(t, err, must.Sprint(out))
	var all []struct{ Tasks []any }
	must.NoError(t, json.Unmarshal([]byte(out), &all))
	test.SliceEmpty(t, all[0].Tasks, test.Sprint("something is left on the host"))

	out, err = x.command(t, "check")
	test.Error(t, err)
	for _, want := range []string{
		"it has Linux ", "the token may read jobs in every namespace", "does a server listen there", "noexec",
	} {
		test.StrContains(t, out, want)
	}
	x.attributes(t)
	x.tokens(t)
}

// attributes tell of each endpoint what is wrong, and the driver is healthy.
func (x *inputs) attributes(t *testing.T) {
	testsupport.Within(t, time.Minute, func() error {
		nodes, _, err := x.Client().Nodes().List(nil)
		must.NoError(t, err)
		node, _, err := x.Client().Nodes().Info(nodes[0].ID, nil)
		must.NoError(t, err)
		d := node.Drivers["remote"]
		if d == nil || !d.Healthy || !strings.Contains(d.HealthDescription, `endpoint "changed" can't be used: `) {
			return fmt.Errorf("the driver is %+v", d)
		}
		for name, want := range map[string]string{
			"endpoint.box.health": "healthy", "endpoint.changed.health": "unhealthy", "endpoint.away.kind": "ssh",
			"endpoint.box.kind": "ssh", "api": "the token may read jobs in every namespace",
		} {
			if got := node.Attributes["driver.remote."+name]; got != want {
				return fmt.Errorf("%s is %q", name, got)
			}
		}
		return nil
	})
}

// tokens has check tell what is wrong with a token.
func (x *inputs) tokens(t *testing.T) {
	c := x.Client()
	_, err := c.ACLPolicies().Upsert(&api.ACLPolicy{Name: "blind", Rules: `node { policy = "read" }`}, nil)
	must.NoError(t, err)
	blind, _, err := c.ACLTokens().Create(&api.ACLToken{Type: "client", Policies: []string{"blind"}}, nil)
	must.NoError(t, err)
	path := filepath.Join(x.dir, "token")
	for _, r := range []struct {
		secret string
		mode   os.FileMode
		want   string
	}{
		{blind.SecretID, 0o600, "sees no job: it needs read-job"},
		{"11111111-6f0c-4b57-9d0b-7c7f2f2f9a11", 0o600, "Nomad does not know the token in "},
		{management, 0o644, "has mode 0644: others may read or change it, 0600 is right"},
		{"", 0o600, "has no token in it"},
	} {
		must.NoError(t, os.WriteFile(path, []byte(r.secret), r.mode))
		must.NoError(t, os.Chmod(path, r.mode))
		out, err := x.command(t, "check", "nodocker") // the quickest
		test.Error(t, err, test.Sprint(out))
		test.StrContains(t, out, "  FAILED  ")
		test.StrContains(t, out, r.want)
	}
	must.NoError(t, os.Remove(path))
	out, err := x.command(t, "check", "nodocker")
	test.Error(t, err, test.Sprint(out))
	test.StrContains(t, out, "failed to open token file")
	config, err := os.ReadFile(x.config)
	must.NoError(t, err)
	without := strings.ReplaceAll(string(config), "token_file", "# token_file")
	must.NoError(t, os.WriteFile(x.config, []byte(without), 0o600))
	out, err = x.command(t, "check", "nodocker")
	test.Error(t, err, test.Sprint(out))
	test.StrContains(t, out, "Nomad's access control is on and there is no token_file: only workload identities are left")
}

// Of the secrets of a task and of the plugin, nothing is in a command line, in the agent's log, in an event, or in a
// file of the host that others can read.
func TestSecrets_AreInTheTaskAlone(t *testing.T) {
	x := newInputs(t)
	const secret = "outrider-secret-5f0c2b"
	j := x.job("secret", map[string]any{
		"endpoint": "box", "command": "/bin/sh", "args": []string{"-c", `cat ${NOMAD_SECRETS_DIR}/file; echo; exec sleep 600`},
	}, func(task *api.Task) {
		task.Env = map[string]string{"PASSWORD": secret}
		task.Identities = []*api.WorkloadIdentity{{Name: "default", Env: true, File: true}}
		task.Templates = []*api.Template{{EmbeddedTmpl: new(secret + "-file"), DestPath: new("secrets/file")}}
	})
	_, _, err := x.Client().Jobs().Register(j, nil)
	must.NoError(t, err)
	var alloc *api.Allocation
	testsupport.Within(t, time.Minute, func() error {
		list, _, err := x.Client().Jobs().Allocations("secret", true, nil)
		if err != nil || len(list) == 0 {
			return fmt.Errorf("no allocation: %w", err)
		}
		if alloc, _, err = x.Client().Allocations().Info(list[0].ID, nil); err != nil {
			return err
		}
		out, _ := os.ReadFile(filepath.Join(x.DataDir(), "alloc", alloc.ID, "alloc/logs/main.stdout.0"))
		if !strings.Contains(string(out), secret+"-file") {
			return fmt.Errorf("the task has not printed its file: %q, %s", out, alloc.ClientStatus)
		}
		return nil
	})
	host := filepath.Join(x.dir, "host")
	token, err := os.ReadFile(filepath.Join(x.DataDir(), "alloc", alloc.ID, "main/secrets/nomad_token"))
	must.NoError(t, err)
	key, err := os.ReadFile(filepath.Join(host, "client_key"))
	must.NoError(t, err)
	secrets := []string{secret, string(token), management, strings.Split(string(key), "\n")[2]}
	none := func(where, text string) {
		t.Helper()
		for _, s := range secrets {
			test.StrNotContains(t, text, s, test.Sprint(where))
		}
	}

	var log strings.Builder
	must.NoError(t, x.Logs(t.Context(), &log, false))
	none("the agent's log", log.String())
	events, err := json.Marshal(alloc.TaskStates)
	must.NoError(t, err)
	none("the events", string(events))
	list, err := x.command(t, "list", "-json")
	must.NoError(t, err)
	none("list", list)
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must.NoError(t, err)
	for _, path := range cmdlines {
		line, _ := os.ReadFile(path)
		none(path, string(line))
	}
	objects, err := filepath.Glob(filepath.Join(host, "home/remote/.local/state/outrider-remote/objects/*"))
	must.NoError(t, err)
	must.SliceLen(t, 1, objects)
	seen := 0
	must.NoError(t, filepath.WalkDir(objects[0], func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if d.IsDir() && st.Mode().Perm()&0o077 == 0 {
			return filepath.SkipDir // nobody else looks into it
		}
		if st.Mode().IsRegular() && st.Mode().Perm()&0o044 != 0 && !strings.Contains(path, "/alloc/logs/") {
			seen++
			text, err := os.ReadFile(path)
			must.NoError(t, err)
			none(path, string(text))
		}
		return nil
	}))
	t.Logf("%d files of the object can be read by others", seen)

	_, _, err = x.Client().Jobs().Deregister("secret", false, nil)
	must.NoError(t, err)
	x.ended(t, "secret", "")
	testsupport.Within(t, time.Minute, func() error {
		if left, err := os.ReadDir(filepath.Dir(objects[0])); err == nil && len(left) > 0 {
			return fmt.Errorf("%d objects are left", len(left))
		}
		return nil
	})
	log.Reset()
	must.NoError(t, x.Logs(t.Context(), &log, false))
	must.StrContains(t, log.String(), alloc.ID)
	none("the agent's log after the stop", log.String())
	alloc, _, err = x.Client().Allocations().Info(alloc.ID, nil)
	must.NoError(t, err)
	events, err = json.Marshal(alloc.TaskStates)
	must.NoError(t, err)
	none("the events after the stop", string(events))
}
