// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
)

// TestMain lets the test binary act as the plugin's binary, both when a test runs a command and when a host starts it.
func TestMain(m *testing.M) {
	testsupport.BeginRoles()
	supervisor.Main()
	p := driver.Plugin()
	p.Commands = All()
	own := []string{"list", "adopt", "release", "stop", "check", "outrider-shim"}
	if len(os.Args) > 1 && slices.Contains(own, os.Args[1]) {
		core.Main(p)
		return
	}
	testsupport.RunInParallel(8) // the tests mostly wait until an idle supervisor ends
	os.Exit(testsupport.EndRoles(m.Run()))
}

// box is a host, simulated by an SSH server on this machine, and an agent's configuration with this host as endpoint.
type box struct {
	t      *testing.T
	server *sshdtest.Server
	dir    string // the directory of tasks on the host
	config string // the directory of the agent's configuration
}

func newBox(t *testing.T, options ...sshdtest.Option) *box {
	t.Helper()
	b := &box{t: t, server: sshdtest.Start(t, options...), config: filepath.Join(t.TempDir(), "nomad.d")}
	var err error
	b.dir, err = os.MkdirTemp("", "or") // short: a socket's path has at most 107 bytes
	must.NoError(t, err)
	t.Cleanup(func() {
		testsupport.Eventually(t, "the supervisors end without tasks", func() bool {
			return len(testsupport.Processes(func(args []string) bool {
				return slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, b.dir+"/") })
			})) == 0
		})
		test.NoError(t, os.RemoveAll(b.dir))
	})
	home, err := os.Stat(b.server.Home)
	must.NoError(t, err)
	user := home.Sys().(*syscall.Stat_t)
	must.NoError(t, os.Chown(b.dir, int(user.Uid), int(user.Gid)))
	must.NoError(t, os.Mkdir(b.config, 0o755))
	b.write("http://127.0.0.1:1", b.endpoint("box", b.server.Port))
	return b
}

// endpoint returns an endpoint block for the box, with this name and port.
func (b *box) endpoint(name string, port int) string { return b.server.Endpoint(name, b.dir, port) }

func (b *box) write(api string, endpoints ...string) {
	b.t.Helper()
	text := fmt.Sprintf("plugin %q {\n  config {\n    api {\n      address = %q\n    }\n%s  }\n}\n", binary, api,
		strings.Join(endpoints, ""))
	must.NoError(b.t, os.WriteFile(filepath.Join(b.config, "remote.hcl"), []byte(text), 0o600))
}

// result is the exit code and the output of a command.
type result struct {
	code     int
	out, err string
}

// does runs a command of the plugin's binary with the box's configuration.
func (b *box) does(command string, args ...string) result {
	b.t.Helper()
	return does(b.t, slices.Concat([]string{command, "-config", b.config}, args)...)
}

func does(t *testing.T, args ...string) result {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	var out, errs bytes.Buffer
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	r := result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
	t.Logf("%q: code %d\n%s%s", args, r.code, r.out, r.err)
	return r
}

// owner is the plugin of a node, together with the task that it has started.
type owner struct {
	*core.Driver
	*drivers.TaskConfig
}

// starts creates a node, and starts a task of this job on it. The task runs sleep with mark as its argument.
func (b *box) starts(job, mark string) *owner {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o := &owner{Driver: core.New(ctx, hclog.NewNullLogger(), driver.Plugin())}
	b.t.Cleanup(func() {
		test.NoError(b.t, o.Close())
		cancel()
	})
	block, err := agentconfig.Block(b.config, binary, "")
	must.NoError(b.t, err)
	var config []byte
	must.NoError(b.t, base.MsgPackEncode(&config, block))
	must.NoError(b.t, o.SetConfig(&base.Config{ApiVersion: drivers.ApiVersion010, PluginConfig: config}))

	alloc := uuid.Generate()
	o.TaskConfig = &drivers.TaskConfig{
		ID: alloc + "/main/" + uuid.Short(), AllocID: alloc, AllocDir: filepath.Join(b.t.TempDir(), alloc), Name: "main",
		JobName: job, JobID: job, TaskGroupName: "group", Namespace: "default", NodeID: uuid.Generate(), NodeName: "node",
		Env: map[string]string{"NOMAD_REGION": "global", "NOMAD_ALLOC_INDEX": "0", "PATH": os.Getenv("PATH")},
	}
	for _, dir := range []string{"alloc/logs", "main/local", "main/secrets"} {
		must.NoError(b.t, os.MkdirAll(filepath.Join(o.AllocDir, dir), 0o755))
	}
	value, errs := schema.Value(schema.Of[driver.TaskConfig]().Spec(), map[string]any{
		"endpoint": "box", "command": "sleep", "args": []any{mark},
		"on_drain": "stop", "on_lost": "restart", // with the defaults and no API, DestroyTask would only release the run
	})
	must.SliceEmpty(b.t, errs)
	must.NoError(b.t, o.EncodeDriverConfig(value))
	_, _, err = o.StartTask(o.TaskConfig)
	must.NoError(b.t, err)
	testsupport.WaitSleepers(b.t, mark, 1)
	return o
}
