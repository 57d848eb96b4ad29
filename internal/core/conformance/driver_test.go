// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/device"
)

func TestMain(m *testing.M) {
	if os.Getenv(hoardVar) != "" {
		device.Main(hoardPlugin)
		return
	}
	conformance.Main(m, func() {
		plugins.ServeCtx(func(context.Context, hclog.Logger) any { return &careless{tasks: map[string]*exec.Cmd{}} })
	})
}

// careless is an unfinished driver that can run a job, but loses all state with its process and reports every exit as a
// success.
type careless struct {
	drivers.DriverSignalTaskNotSupported
	drivers.DriverExecTaskNotSupported

	tasks map[string]*exec.Cmd
}

var _ drivers.DriverPlugin = (*careless)(nil)

func (*careless) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type: base.PluginTypeDriver, Name: "careless", PluginVersion: "0.1.0",
		PluginApiVersions: []string{drivers.ApiVersion010},
	}, nil
}

func (*careless) ConfigSchema() (*hclspec.Spec, error) {
	return hclspec.NewObject(map[string]*hclspec.Spec{}), nil
}

func (*careless) SetConfig(*base.Config) error { return nil }

func (*careless) TaskConfigSchema() (*hclspec.Spec, error) {
	return hclspec.NewObject(map[string]*hclspec.Spec{"script": hclspec.NewAttr("script", "string", true)}), nil
}

func (*careless) Capabilities() (*drivers.Capabilities, error) { return &drivers.Capabilities{}, nil }

// Fingerprint closes the channel, so an agent would reopen it in a busy loop.
func (*careless) Fingerprint(context.Context) (<-chan *drivers.Fingerprint, error) {
	ch := make(chan *drivers.Fingerprint, 1)
	ch <- &drivers.Fingerprint{
		Attributes: map[string]*structs.Attribute{"driver.careless": structs.NewBoolAttribute(true)},
		Health:     drivers.HealthStateHealthy,
	}
	close(ch)
	return ch, nil
}

func (*careless) TaskEvents(context.Context) (<-chan *drivers.TaskEvent, error) {
	return make(chan *drivers.TaskEvent), nil
}

func (d *careless) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	var config struct {
		Script string `codec:"script"`
	}
	if err := cfg.DecodeDriverConfig(&config); err != nil {
		return nil, nil, err
	}
	cmd := exec.Command("/bin/sh", "-c", config.Script)
	cmd.Env = cfg.EnvList()
	d.tasks[cfg.ID] = cmd
	handle := drivers.NewTaskHandle(1)
	handle.Config = cfg
	return handle, nil, cmd.Start()
}

func (*careless) RecoverTask(*drivers.TaskHandle) error { return nil }

func (d *careless) WaitTask(_ context.Context, id string) (<-chan *drivers.ExitResult, error) {
	ch := make(chan *drivers.ExitResult, 1)
	if cmd := d.tasks[id]; cmd != nil {
		_ = cmd.Wait()
	}
	ch <- &drivers.ExitResult{}
	return ch, nil
}

func (d *careless) StopTask(id string, _ time.Duration, _ string) error {
	return d.tasks[id].Process.Signal(os.Interrupt) // panics if the task is unknown
}

func (d *careless) DestroyTask(id string, _ bool) error {
	if d.tasks[id] == nil {
		return drivers.ErrTaskNotFound
	}
	_ = d.tasks[id].Process.Kill()
	delete(d.tasks, id)
	return nil
}

func (d *careless) InspectTask(id string) (*drivers.TaskStatus, error) {
	if d.tasks[id] == nil {
		return nil, drivers.ErrTaskNotFound
	}
	return &drivers.TaskStatus{ID: id, State: drivers.TaskStateRunning, StartedAt: time.Now()}, nil
}

func (*careless) TaskStats(context.Context, string, time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	return nil, errors.New("no statistics")
}

func TestDriver_FindsTheMistakesOfACarelessDriver(t *testing.T) {
	want := map[string]conformance.Outcome{
		"the plugin reports its name, version and API":                    conformance.Passed,
		"the fingerprint arrives immediately, is healthy, and stays open": conformance.Failed,
		"attributes are under driver.<name>":                              conformance.Passed,
		"a task has its environment, unchanged":                           conformance.Passed,
		"an exit code is reported unchanged":                              conformance.Failed,
		"a signal that ended a task is reported":                          conformance.Failed,
		"WaitTask for an unknown task returns an error":                   conformance.Failed,
		"StopTask and DestroyTask succeed for ended and unknown tasks":    conformance.Failed,
		"DestroyTask without force does not end a task":                   conformance.Failed,
		"an exit while no plugin runs is reported correctly":              conformance.Failed,
		"a task that was not recovered can be destroyed":                  conformance.Failed,
		"no exit is invented for a task whose state is gone":              conformance.Failed,
		"SignalTask reaches the task, which keeps running":                conformance.NotApplicable,
		"ExecTask runs in the task, and returns output and code":          conformance.NotApplicable,
		"nothing is left of the plugin":                                   conformance.Passed,
	}
	names := ""
	for name := range want {
		names += fmt.Sprintf("|^%s$", regexp.QuoteMeta(name))
	}
	got := map[string]conformance.Outcome{}
	must.NoError(t, conformance.Driver{Only: regexp.MustCompile(names[1:])}.Run(func(r conformance.Result) {
		t.Logf("%s: %s %s", r.Case, r.Outcome, r.Why)
		got[r.Case] = r.Outcome
	}))
	must.Eq(t, want, got)
}

func TestDriver_ReportsWhyAPluginDoesNotLoad(t *testing.T) {
	err := conformance.Driver{Exe: "/bin/true"}.Run(func(conformance.Result) {})
	must.ErrorContains(t, err, "failed to load the plugin")
}
