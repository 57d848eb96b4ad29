// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/fsisolation"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// ExampleEngine returns the engine of the example in package driver_test, which sets this variable. The engine's tasks
// call Programs.
var ExampleEngine func() Engine

// withEngine is a testInstance with its own engine.
type withEngine struct {
	testInstance
	engine Engine
}

func (w withEngine) Engine() Engine { return w.engine }

// eachEngine runs a test with tasks that are processes of this host, and with tasks
// that are goroutines.
func eachEngine(t *testing.T, test func(t *testing.T, a *agent)) {
	t.Run("local", func(t *testing.T) { test(t, start(t, nil)) })
	t.Run("example", func(t *testing.T) { test(t, startInstance(t, testInstance{engine: ExampleEngine()}, nil)) })
}

// scripts are the test programs as shell scripts, for the local engine. Each prints a line when it is ready.
var scripts = map[string]string{
	"exit":  `echo r; exit $1`,
	"until": `echo r; while [ ! -e $1 ]; do sleep 0.01; done; exit $2`,
	"sleep": `trap "exit $1" INT; echo r; while :; do sleep 0.02; done`,
	"deaf":  `trap '' INT; echo r; while :; do sleep 0.02; done`,
	"trap":  `trap "exit $2" $1; echo r; while :; do sleep 0.02; done`,
}

// program returns a task that runs a test program: as a shell script for the local engine, or as a function.
func (a *agent) program(name string, args ...string) *drivers.TaskConfig {
	a.t.Helper()
	path, list := name, args
	if a.instance.engine == nil {
		path, list = "/bin/sh", append([]string{"-c", scripts[name], name}, args...)
	}
	for i, arg := range list {
		list[i] = fmt.Sprintf("%q", arg)
	}
	return a.task(fmt.Sprintf("command = %q\nargs = [%s]", path, strings.Join(list, ", ")))
}

// ready waits until a program is ready.
func (a *agent) ready(cfg *drivers.TaskConfig) {
	a.t.Helper()
	if a.instance.engine == nil {
		testsupport.Eventually(a.t, "it is ready", func() bool { return strings.HasPrefix(a.output(cfg), "r\n") })
	}
}

// Programs runs a test program as a function, for the engine of the example.
func Programs(name string, args []string, signals <-chan string) *task.Exit {
	code, _ := strconv.Atoi(args[len(args)-1])
	e := &task.Exit{Code: code}
	for name != "exit" {
		select {
		case signal := <-signals:
			if signal == "SIGKILL" {
				return &task.Exit{Signal: 9}
			}
			if name == "sleep" || name == "trap" && signal == "SIG"+args[0] {
				return e
			}
		case <-time.After(time.Millisecond):
			if name == "until" && testsupport.Exists(args[0]) {
				return e
			}
		}
	}
	return e
}

// fullEngine implements every optional method of an engine and its tasks.
type fullEngine struct {
	Engine
	node  Node
	saved string // passed to Recover
}

type fullTask struct{ Task }

func (e *fullEngine) Probe(context.Context) (Node, error) { return e.node, nil }

func (e *fullEngine) Capabilities(c *drivers.Capabilities) { c.FSIsolation = fsisolation.Image }

func (e *fullEngine) Start(ctx context.Context, s *Start) (Task, error) {
	t, err := e.Engine.Start(ctx, s)
	return fullTask{t}, err
}

func (e *fullEngine) Recover(ctx context.Context, c *drivers.TaskConfig, saved []byte, event Event) (Task, error) {
	e.saved = string(saved)
	t, err := e.Engine.Recover(ctx, c, saved, event)
	return fullTask{t}, err
}

func (fullTask) Saved() ([]byte, error) { return []byte(`{"a":1}`), nil }

func (fullTask) Describe(r *Run) {
	r.Attributes, r.Network = map[string]string{"host": "far"}, &drivers.DriverNetwork{IP: "192.0.2.1"}
}

func (fullTask) Stats(context.Context) (*drivers.TaskResourceUsage, error) {
	return &drivers.TaskResourceUsage{ResourceUsage: &drivers.ResourceUsage{
		CpuStats: &drivers.CpuStats{}, MemoryStats: &drivers.MemoryStats{RSS: 5, Measured: []string{"RSS"}},
	}}, nil
}

func (fullTask) Exec(_ context.Context, o *drivers.ExecOptions) (*task.Exit, error) {
	defer o.Stdout.Close()
	_, err := io.WriteString(o.Stdout, o.Command[0])
	return &task.Exit{Code: 4}, err
}

func TestEngine_UsesOptionalMethods(t *testing.T) {
	e := &fullEngine{Engine: ExampleEngine()}
	a := startInstance(t, testInstance{engine: e}, nil)
	cfg := a.program("deaf", "0")
	th, network, err := a.driver.StartTask(cfg)
	must.NoError(t, err)
	test.Eq(t, "192.0.2.1", network.IP)
	capabilities, err := a.Capabilities()
	must.NoError(t, err)
	test.Eq(t, fsisolation.Image, capabilities.FSIsolation)

	a.restart()
	must.NoError(t, a.RecoverTask(wire(t, th)))
	test.Eq(t, `{"a":1}`, e.saved)
	status, err := a.InspectTask(cfg.ID)
	must.NoError(t, err)
	test.Eq(t, "far", status.DriverAttributes["host"])
	usages, err := a.TaskStats(t.Context(), cfg.ID, time.Minute)
	must.NoError(t, err)
	test.Eq(t, 5, (<-usages).ResourceUsage.MemoryStats.RSS)
	r, err := a.ExecTask(cfg.ID, []string{"hello"}, time.Minute)
	must.NoError(t, err)
	test.Eq(t, "hello", string(r.Stdout))
	test.Eq(t, 4, r.ExitResult.ExitCode)

	e.node = Node{
		Attributes: map[string]*structs.Attribute{"hosts": structs.NewIntAttribute(2, "")},
		Missing:    []string{"one host is down"}, Removed: []string{cfg.ID},
	}
	print, _, err := a.driver.probe(t.Context())
	must.NoError(t, err)
	reported := print.Attributes["driver.test-driver.hosts"] != nil
	must.True(t, reported, must.Sprintf("got %+v", print))
	test.StrHasSuffix(t, "; one host is down", print.HealthDescription, test.Sprintf("got %+v", print))
	test.SliceEmpty(t, a.known(), test.Sprint("tasks of the driver"))
	a.destroy(cfg.ID)
}
