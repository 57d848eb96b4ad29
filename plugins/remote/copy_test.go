// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// node is the plugin of a Nomad node with one endpoint, and a task for that endpoint.
type node struct {
	*core.Driver
	*drivers.TaskConfig
	host string // the endpoint's directory on the host
}

// newNode returns a plugin with the endpoint "box", and a task with a file of this content in its local directory.
func newNode(t *testing.T, server *sshdtest.Server, port int, options string, content []byte) *node {
	t.Helper()
	dir := newDir(t)
	n := &node{Driver: newPlugin(t, server.Endpoint("box", dir, port)+options, "http://127.0.0.1:1"), host: dir}
	n.TaskConfig = newTask(t, "job", map[string]any{
		"command": "sleep", "args": []any{"1000000"}, "on_drain": "stop", "on_lost": "restart",
	})
	must.NoError(t, os.WriteFile(filepath.Join(n.AllocDir, "main/local/file"), content, 0o644))
	return n
}

// newDir returns a directory for tasks on a host. After the test, no process of these tasks may still run.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "or") // short: a socket's path has at most 107 bytes
	must.NoError(t, err)
	t.Cleanup(func() {
		testsupport.Eventually(t, "the supervisor ends without tasks", func() bool {
			return len(testsupport.Processes(func(args []string) bool {
				return slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, dir+"/") })
			})) == 0
		})
		test.NoError(t, os.RemoveAll(dir))
	})
	return dir
}

// newMark returns an argument for sleep by which a test finds its tasks. After the test, it kills tasks that still run.
func newMark(t *testing.T) string {
	mark := testsupport.Mark()
	t.Cleanup(func() {
		for _, pid := range testsupport.Sleepers(mark) {
			test.NoError(t, unix.Kill(pid, unix.SIGKILL))
		}
	})
	return mark
}

// newPlugin returns a plugin with these options, and with this address of the API. It is closed when the test ends.
func newPlugin(t *testing.T, options, api string) *core.Driver {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := core.New(ctx, hclog.NewNullLogger(), driver.Plugin())
	t.Cleanup(func() {
		test.NoError(t, d.Close())
		cancel()
	})
	text := fmt.Sprintf(`plugin "nomad-driver-remote" {
  config {
    api {
      address = %q
    }
    %s
  }
}`, api, options)
	file := filepath.Join(t.TempDir(), "remote.hcl")
	must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	block, err := agentconfig.Block(file, "nomad-driver-remote", "")
	must.NoError(t, err)
	var config []byte
	must.NoError(t, base.MsgPackEncode(&config, block))
	must.NoError(t, d.SetConfig(&base.Config{ApiVersion: drivers.ApiVersion010, PluginConfig: config}))
	return d
}

// newTask returns a task of a job, in a new allocation, on endpoint "box".
func newTask(t *testing.T, job string, options map[string]any) *drivers.TaskConfig {
	t.Helper()
	alloc := uuid.Generate()
	cfg := &drivers.TaskConfig{
		ID: alloc + "/main/" + uuid.Short(), AllocID: alloc, AllocDir: filepath.Join(t.TempDir(), alloc), Name: "main",
		JobName: job, JobID: job, TaskGroupName: "group", Namespace: "default", NodeID: uuid.Generate(),
		Env: map[string]string{"NOMAD_REGION": "global", "NOMAD_ALLOC_INDEX": "0", "PATH": os.Getenv("PATH")},
	}
	for _, dir := range []string{"alloc/logs", "main/local", "main/secrets"} {
		must.NoError(t, os.MkdirAll(filepath.Join(cfg.AllocDir, dir), 0o755))
	}
	options["endpoint"] = "box"
	value, errs := schema.Value(schema.Of[driver.TaskConfig]().Spec(), options)
	must.SliceEmpty(t, errs)
	must.NoError(t, cfg.EncodeDriverConfig(value))
	return cfg
}

// starts starts the task as soon as the host is connected, checks the copied file, and destroys the task.
func (n *node) starts(t *testing.T, content []byte) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		_, _, err := n.StartTask(n.Copy())
		return err
	})
	got, err := os.ReadFile(filepath.Join(n.onHost(), "main/local/file"))
	must.NoError(t, err)
	must.Eq(t, len(content), len(got))
	must.NoError(t, n.DestroyTask(n.ID, true))
}

// onHost returns the allocation's directory on the host.
func (n *node) onHost() string { return shim.AllocDir(n.host, n.AllocID) }

// records returns the paths of the records of runs on the host.
func (n *node) records(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.host, "runs", "*.json"))
	must.NoError(t, err)
	return files
}

func TestCopy_FailureRemovesRecord(t *testing.T) {
	t.Parallel()
	tools := t.TempDir()
	must.NoError(t, os.Chmod(filepath.Dir(tools), 0o755))
	tar := filepath.Join(tools, "tar")
	must.NoError(t, os.WriteFile(tar, []byte("#!/bin/sh\nyes 'tar: no' | head -c 10000000 >&2\nexit 2\n"), 0o755))
	server := sshdtest.Start(t, sshdtest.Env("PATH="+tools+":"+os.Getenv("PATH")))
	content := []byte("content")
	n := newNode(t, server, server.Port, "", content)
	_, _, err := n.StartTask(n.Copy())
	must.ErrorContains(t, err, `failed to copy files to endpoint "box": `)
	must.ErrorContains(t, err, "tar: no")
	must.True(t, structs.IsRecoverable(err))
	must.SliceEmpty(t, n.records(t))
	must.NoError(t, os.Remove(tar))
	n.starts(t, content)
	must.SliceEmpty(t, n.records(t))
}

// Nomad inserts the node's paths into the commands of script checks. ExecTask must convert them to the host's paths.
func TestExec_UsesHostPaths(t *testing.T) {
	t.Parallel()
	server := sshdtest.Start(t)
	n := newNode(t, server, server.Port, "", nil)
	_, _, err := n.StartTask(n.Copy())
	must.NoError(t, err)
	result, err := n.ExecTask(n.ID, []string{"echo", "-x=" + n.AllocDir + "/main/local/check.sh"}, time.Minute)
	must.NoError(t, err)
	must.Eq(t, "-x="+n.onHost()+"/main/local/check.sh\n", string(result.Stdout))
	must.NoError(t, n.DestroyTask(n.ID, true))
}

func TestCopy_IsRetriedAfterALostConnection(t *testing.T) {
	t.Parallel()
	server := sshdtest.Start(t)
	link := server.Link()
	content := make([]byte, 20<<20)
	n := newNode(t, server, link.Port, "", content)
	fingerprints, err := n.Fingerprint(t.Context())
	must.NoError(t, err)
	for f := range fingerprints { // wait until the host is connected
		if healthy, _ := f.Attributes["driver.remote.endpoint.box.healthy"].GetBool(); healthy {
			break
		}
	}
	link.CutAfter(5 << 20)
	failed := make(chan error)
	go func() {
		_, _, err := n.StartTask(n.Copy())
		failed <- err
	}()
	link.WaitCut()
	must.Len(t, 1, n.records(t))
	server.Restart()
	link.Restore()
	err = <-failed
	must.ErrorContains(t, err, `the connection to endpoint "box" was lost during the start`)
	must.True(t, structs.IsRecoverable(err))
	n.starts(t, content)
	must.SliceEmpty(t, n.records(t))
}

func TestCopy_IsRefusedForADeniedUser(t *testing.T) {
	t.Parallel()
	testsupport.NeedRoot(t)
	server := sshdtest.Start(t)
	n := newNode(t, server, server.Port, "denied_host_uids = \"65534\"\n", nil)
	n.User = "nobody"
	_, _, err := n.StartTask(n.Copy())
	must.ErrorContains(t, err, "user id 65534 is not allowed")
	_, err = os.Lstat(n.onHost())
	must.ErrorIs(t, err, fs.ErrNotExist)

	server = sshdtest.Start(t, sshdtest.Unprivileged())
	n = newNode(t, server, server.Port, "", nil)
	must.NoError(t, os.Chown(n.host, server.UID, -1))
	n.User = "nobody"
	_, _, err = n.StartTask(n.Copy())
	must.ErrorContains(t, err, "the plugin logs in as user id 54321, which is not root")
}

// The server on the host refuses such a large config block before its driver gets the task.
func TestStart_FailureRemovesRecord(t *testing.T) {
	t.Parallel()
	server := sshdtest.Start(t)
	n := newNode(t, server, server.Port, "", nil)
	large := newTask(t, "job", map[string]any{
		"command": "sleep", "args": []any{strings.Repeat("1", 5<<20)}, "on_drain": "stop", "on_lost": "restart",
	})
	_, _, err := n.StartTask(large)
	must.ErrorContains(t, err, "the task's config block has ")
	must.False(t, structs.IsRecoverable(err))
	must.SliceEmpty(t, n.records(t))
	n.starts(t, nil)
}

// The record of a second run of the task can't be read, so the end of that run can't be recorded.
func TestStart_IsIndependentOfARunThatCanNotBeEnded(t *testing.T) {
	t.Parallel()
	server := sshdtest.Start(t)
	n := newNode(t, server, server.Port, "", nil)
	_, _, err := n.StartTask(n.Copy())
	must.NoError(t, err)
	prefix, _, _ := strings.Cut(n.records(t)[0], "-")
	must.NoError(t, os.WriteFile(prefix+"-0.json", nil, 0o600))
	must.ErrorContains(t, n.DestroyTask(n.ID, true), "failed to read the record")

	other := newTask(t, "other", map[string]any{
		"command": "sleep", "args": []any{"1000000"}, "on_drain": "stop", "on_lost": "restart",
	})
	_, _, err = n.StartTask(other)
	must.NoError(t, err)
	must.NoError(t, n.DestroyTask(other.ID, true))

	n.ID = n.AllocID + "/main/" + uuid.Short()
	_, _, err = n.StartTask(n.Copy())
	must.ErrorContains(t, err, "failed to read the record")
	must.NoError(t, os.Remove(prefix+"-0.json"))
	n.starts(t, nil)
	must.SliceEmpty(t, n.records(t))
}
