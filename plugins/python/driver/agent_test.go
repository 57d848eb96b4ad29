// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/harness"
)

// TestMain runs the tests. The driver starts this binary again as its supervisor and its launcher: there,
// supervisor.Main does not return.
func TestMain(m *testing.M) {
	testsupport.BeginRoles()
	supervisor.Main()
	os.Exit(testsupport.EndRoles(runTests(m)))
}

func runTests(m *testing.M) int {
	// Nomad's harness leaves files in TMPDIR, so the tests get their own, which is removed at the end. Its path must be
	// short, because the path of a socket has at most 107 bytes.
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("p%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv("TMPDIR", dir)
	return m.Run()
}

// patience is how long a test waits for an expected event, even on an overloaded machine.
const patience = time.Minute

// agent simulates the Nomad agent that uses the driver.
type agent struct {
	t   *testing.T
	dir string // the parent of state_dir and cache_dir
	*testutils.DriverHarness
	driver *driver.Driver
	python *instance
	cancel context.CancelFunc

	mu     sync.Mutex
	events []*drivers.TaskEvent
}

// start starts the driver with an empty cache. It skips the test if the machine has no Python for tasks.
func start(t *testing.T, change ...func(*Config)) *agent {
	t.Helper()
	testsupport.NeedPython(t)
	dir, err := os.MkdirTemp("", "a")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(dir, 0o755))
	a := &agent{t: t, dir: dir}
	a.startDriver(change...)
	t.Cleanup(func() {
		a.stopDriver()
		_ = exec.Command("chmod", "-R", "u+w", dir).Run() // environments are read-only
		must.NoError(t, os.RemoveAll(dir))
	})
	return a
}

func (a *agent) startDriver(change ...func(*Config)) {
	t := a.t
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	p := Plugin()
	p.New = func(c Config, logger hclog.Logger) (_ driver.Instance[TaskConfig], err error) {
		a.python, err = newInstance(c, logger)
		return a.python, err
	}
	a.driver = driver.New(ctx, hclog.NewNullLogger(), p)
	a.DriverHarness = testutils.NewDriverHarness(t, a.driver)
	config := schema.Of[Config]().Default()
	config.StateDir, config.CacheDir = filepath.Join(a.dir, "state"), filepath.Join(a.dir, "cache")
	config.UV, config.Offline, config.Interpreters = uv(t), true, []string{onePython(t)}
	for _, f := range change {
		f(&config)
	}
	var packed []byte
	must.NoError(t, base.MsgPackEncode(&packed, &config))
	must.NoError(t, a.SetConfig(&base.Config{PluginConfig: packed,
		AgentConfig: &base.AgentConfig{Driver: &base.ClientDriverConfig{}}}))
	events, err := a.TaskEvents(ctx)
	must.NoError(t, err)
	go func() { // ends when stopDriver cancels ctx
		for e := range events {
			a.mu.Lock()
			a.events = append(a.events, e)
			a.mu.Unlock()
		}
	}()
}

// onePython returns a directory that has only one interpreter: uv runs each one that it finds, which takes time.
func onePython(t *testing.T) string {
	dir := filepath.Join(os.TempDir(), "python")
	must.NoError(t, os.MkdirAll(dir, 0o755))
	err := os.Symlink(testsupport.Python, filepath.Join(dir, "python3"))
	must.True(t, err == nil || os.IsExist(err), must.Sprint(err))
	return dir
}

// stopDriver stops the plugin; tasks keep running.
func (a *agent) stopDriver() {
	a.cancel()
	harness.Kill(a.DriverHarness)
	a.driver.Close()
}

// task returns a task as Nomad passes it to a driver, with a config block in HCL and files in its local directory.
func (a *agent) task(config string, files map[string]string, change ...func(*drivers.TaskConfig)) *drivers.TaskConfig {
	t := a.t
	t.Helper()
	alloc := uuid.Generate()
	cfg := &drivers.TaskConfig{
		ID: alloc + "/app/" + uuid.Short(), AllocID: alloc, Name: "app", NodeID: "node", JobName: "job",
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"},
		Resources: &drivers.Resources{
			NomadResources: &structs.AllocatedTaskResources{
				Memory: structs.AllocatedMemoryResources{MemoryMB: 256}, Cpu: structs.AllocatedCpuResources{CpuShares: 100},
			},
			LinuxResources: &drivers.LinuxResources{},
		},
	}
	for _, f := range change {
		f(cfg)
	}
	spec, err := a.TaskConfigSchema()
	must.NoError(t, err)
	var decoded map[string]any
	hclutils.NewConfigParser(spec).ParseHCL(t, "config {\n"+config+"\n}", &decoded)
	must.NoError(t, cfg.EncodeConcreteDriverConfig(decoded))
	t.Cleanup(a.MkAllocDir(cfg, false))
	for dir := cfg.AllocDir; strings.Contains(dir, "nomad_driver_harness"); dir = filepath.Dir(dir) {
		must.NoError(t, os.Chmod(dir, 0o755))
	}
	for name, content := range files {
		path := filepath.Join(cfg.TaskDir().LocalDir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return cfg
}

// run runs a task until it exits, and returns its stdout and its exit result.
func (a *agent) run(cfg *drivers.TaskConfig) (string, *drivers.ExitResult) {
	a.t.Helper()
	if _, _, err := a.StartTask(cfg); err != nil {
		a.t.Fatalf("start: %v\nevents: %q", err, a.said(cfg))
	}
	r := a.wait(cfg)
	must.NoError(a.t, a.DestroyTask(cfg.ID, true))
	return a.output(cfg, "stdout"), r
}

// runs is like run, but fails the test if the task fails.
func (a *agent) runs(cfg *drivers.TaskConfig) string {
	a.t.Helper()
	out, r := a.run(cfg)
	if r.ExitCode != 0 || r.Err != nil {
		a.t.Fatalf("exit %+v, stdout %q, stderr %q", r, out, a.output(cfg, "stderr"))
	}
	return out
}

func (a *agent) wait(cfg *drivers.TaskConfig) *drivers.ExitResult {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ch, err := a.WaitTask(ctx, cfg.ID)
	must.NoError(a.t, err)
	return <-ch
}

// refused starts a task that must be refused, and returns the error.
func (a *agent) refused(cfg *drivers.TaskConfig) error {
	a.t.Helper()
	_, _, err := a.StartTask(cfg)
	if err == nil {
		must.NoError(a.t, a.DestroyTask(cfg.ID, true))
		a.t.Fatal("the task was started")
	}
	return err
}

func (a *agent) output(cfg *drivers.TaskConfig, stream string) string {
	b, _ := os.ReadFile(filepath.Join(cfg.AllocDir, "alloc/logs/app."+stream+".0"))
	return string(b)
}

func (a *agent) said(cfg *drivers.TaskConfig) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for _, e := range a.events {
		if e.TaskID == cfg.ID {
			all = append(all, e.Message)
		}
	}
	return all
}

func (a *agent) says(cfg *drivers.TaskConfig, text string) {
	a.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		for _, m := range a.said(cfg) {
			if strings.Contains(m, text) {
				return
			}
		}
		if time.Now().After(end) {
			a.t.Fatalf("no event has %q: %q", text, a.said(cfg))
		}
	}
}

// hasSaid returns after the events of all earlier tasks have arrived. Events arrive in order, so it runs one more task,
// and waits for that task's event.
func (a *agent) hasSaid() {
	a.t.Helper()
	last := a.task(`code = "import os\nos.kill(os.getpid(), 9)"`, nil)
	a.run(last)
	a.says(last, "Killed by signal 9")
}

func asUserOf(name string) func(*drivers.TaskConfig) {
	return func(c *drivers.TaskConfig) { c.User = name }
}
