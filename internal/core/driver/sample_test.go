// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport/harness"
)

func init() {
	driver.ExampleEngine = func() driver.Engine {
		return &goroutines{call: func(c *task.Command, signals <-chan string) *task.Exit {
			return driver.Programs(c.Path, c.Args, signals)
		}}
	}
}

func TestExample_RunsModules(t *testing.T) {
	state, err := os.MkdirTemp("", "otx") // short, for a socket
	must.NoError(t, err)
	defer os.RemoveAll(state)
	var log bytes.Buffer
	logger := hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Debug, DisableTime: true})
	d := driver.New(t.Context(), logger, wasmPlugin)
	defer d.Close()
	h := testutils.NewDriverHarness(t, d)
	defer harness.Kill(h)
	config := schema.Of[Config]().Default()
	config.StateDir, config.Runtime = state, "sh"
	configure := func() {
		var packed []byte
		must.NoError(t, base.MsgPackEncode(&packed, &config))
		must.NoError(t, h.SetConfig(&base.Config{PluginConfig: packed, AgentConfig: &base.AgentConfig{}}))
	}
	configure()
	prints, err := h.Fingerprint(t.Context())
	must.NoError(t, err)
	runtime, _ := (<-prints).Attributes["driver.wasm.runtime"].GetString()
	must.StrHasSuffix(t, "/sh", runtime)

	alloc := uuid.Generate()
	cfg := &drivers.TaskConfig{ID: alloc + "/greet/1", AllocID: alloc, Name: "greet", NodeID: driver.NewNode()}
	t.Cleanup(h.MkAllocDir(cfg, false))
	module := filepath.Join(cfg.TaskDir().LocalDir, "greet")
	must.NoError(t, os.WriteFile(module, []byte(`echo "says $1"; kill -STOP $$; exit 3`), 0o644))
	options := schema.Of[TaskConfig]().Default()
	options.Module, options.Args = module, []string{"hello"}
	must.NoError(t, cfg.EncodeConcreteDriverConfig(&options))
	_, _, err = h.StartTask(cfg)
	must.NoError(t, err)

	status, err := h.InspectTask(cfg.ID)
	must.NoError(t, err)
	_, err = h.ExecTask(cfg.ID, []string{"true"}, time.Minute)
	must.ErrorContains(t, err, "can't run commands in tasks")

	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		text, _ := os.ReadFile("/proc/" + status.DriverAttributes["pid"] + "/status")
		return strings.Contains(string(text), "State:\tT")
	}), wait.Timeout(time.Minute), wait.Gap(10*time.Millisecond)))
	must.NoError(t, h.SignalTask(cfg.ID, "SIGCONT"))
	results, err := h.WaitTask(t.Context(), cfg.ID)
	must.NoError(t, err)
	r := <-results
	must.NoError(t, r.Err)
	must.Eq(t, 3, r.ExitCode)
	out, err := os.ReadFile(filepath.Join(cfg.AllocDir, "alloc/logs/greet.stdout.0"))
	must.NoError(t, err)
	must.Eq(t, "says hello\n", string(out))
	must.NoError(t, h.DestroyTask(cfg.ID, true))
	about := "task=" + cfg.ID
	from := 0
	for _, line := range []string{
		"starting task: " + about, "task started: " + about + " pid=" + status.DriverAttributes["pid"],
		"task has ended: " + about + ` exit="code 3"`, "task destroyed: " + about,
	} {
		at := strings.Index(log.String()[from:], line+"\n")
		must.NonNegative(t, at, must.Sprintf("no %q, in this order, in\n%s", line, &log))
		from += at
	}

	config.Runtime = "no-such-runtime"
	configure()
	prints, err = h.Fingerprint(t.Context())
	must.NoError(t, err)
	must.Eq(t, drivers.HealthStateUnhealthy, (<-prints).Health)
}

func TestExample_MatchesThePage(t *testing.T) {
	const file = "example_test.go"
	schematest.Source(t, "../../../docs/develop/driver.md", "internal/core/driver/"+file, file)
}
