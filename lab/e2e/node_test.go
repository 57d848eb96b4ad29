// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// node is a private agent with one of the task drivers.
type node struct {
	agent.Agent
	driver  string // the driver's name
	dir     string
	state   string // the plugin's state_dir
	bare    bool   // the agent has no cgroups
	builder int    // the user that builds environments; 0: the agent's user
}

type nodeOptions struct {
	config string // additional configuration of the agent
	plugin string // the plugin's configuration, without state_dir
	state  string // the plugin's state_dir; empty: a directory of the agent
	bare   bool   // the agent has no cgroups

	python  *pythonOptions // nil: the driver is exec-lite
	remote  bool           // the driver is remote; state is its directory on the host
	usb     *usbOptions    // nil: without the usb plugin
	classes string         // the dataset plugin's classes; empty: without the plugin
	dataset string         // the dataset plugin's additional configuration
	slots   string         // replaces datasetConfig

	of *node // the node whose server the agent uses; nil: its own server

	// shell runs before the agent, in its process, with the agent's command in "$@". It may exec a program that starts
	// that command, such as setpriv. $DIR is the agent's directory.
	shell string
}

// need skips the test if the machine lacks programs that the tasks need.
func (o nodeOptions) need(t testing.TB) {
	t.Helper()
	if o.python != nil {
		testsupport.NeedPython(t)
	}
}

// keepAllocations makes the agent keep more ended allocations than the default of 50, for the tests to read.
const keepAllocations = `client { gc_max_allocs = 1000 }`

// newNode starts an agent. At the end of the test it checks that nothing is left.
func newNode(t *testing.T, o nodeOptions) *node {
	t.Helper()
	o.need(t)
	n, err := startNode(t.Name(), o)
	must.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			n.tellLog(t)
		}
		test.NoError(t, n.end())
	})
	return n
}

func startNode(name string, o nodeOptions) (*node, error) {
	dir, err := os.MkdirTemp(scratch, "n")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	if o.state == "" {
		o.state = "${state_dir}"
	}
	binary := nomadBinary
	if o.shell != "" {
		binary = dir + ".nomad"
		if err := writeShell(binary, dir, o.shell); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	driver, builder := execLite, 0
	if o.python != nil {
		driver = python
		if os.Geteuid() == 0 && !o.bare {
			builder = newBuilder()
		}
		o.plugin += o.python.config(builder)
	}
	pluginConfig := fmt.Sprintf("state_dir = %q\n%s", o.state, o.plugin)
	if o.remote {
		driver, pluginConfig = remote, o.plugin
	}
	plugins := []agent.Plugin{{Binary: driver, Config: pluginConfig}}
	config := keepAllocations + "\n" + o.config
	if o.usb != nil {
		plugins = append(plugins, agent.Plugin{Binary: usbPlugin, Config: o.usb.config(dir)})
	}
	if o.classes != "" {
		plugins = append(plugins, agent.Plugin{Binary: dataset, Config: cmp.Or(o.slots, datasetConfig) + o.dataset,
			HostVolume: "dataset", HostVolumeFile: o.classes})
	}
	server := ""
	if o.of != nil {
		server = fmt.Sprintf("127.0.0.1:%d", o.of.Info().RPC)
	}
	a, err := agent.Run(ctx, agent.Options{
		Runtime: agent.Host, Dir: dir, Binary: binary, Config: config, Server: server,
		Name:    "e2e-" + strings.ToLower(name),
		Plugins: plugins,
	})
	if err != nil {
		return nil, fmt.Errorf("failed to start an agent for %s: %w", name, err)
	}
	if o.state == "${state_dir}" {
		o.state = a.StateDir()
	}
	return &node{Agent: a, driver: plugins[0].Driver(), dir: a.Info().Dir, state: o.state, bare: o.bare, builder: builder},
		nil
}

// writeShell writes the script that starts an agent, see nodeOptions.shell.
func writeShell(path, dir, shell string) error {
	text := "#!/bin/sh\nset -e\nDIR=" + dir + "\nset -- " + nomadBinary + " \"$@\"\n" + shell + "\nexec \"$@\"\n"
	syscall.ForkLock.RLock() // a child forked while the file is open would make its execution fail (ETXTBSY)
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}

// end stops all jobs, and then stops and removes the agent in any case. It returns an error if tasks or the agent have
// left anything.
func (n *node) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return errors.Join(n.endTasks(), n.Stop(ctx), n.remove(ctx))
}

// endTasks stops all jobs, and returns an error with the leftovers of tasks, if any.
func (n *node) endTasks() error {
	err := testsupport.Poll(patience, func() error { return errors.Join(n.stopJobs(), n.tasksLeft()) })
	if err != nil {
		err = fmt.Errorf("with all jobs stopped: %w", err)
	}
	return err
}

// remove removes a stopped agent, and returns an error with its leftovers, if any.
func (n *node) remove(ctx context.Context) error {
	err := testsupport.Poll(time.Minute, n.anythingLeft)
	if err != nil {
		err = fmt.Errorf("with the agent stopped: %w", err)
	}
	return errors.Join(err, n.Close(ctx))
}

// stopJobs stops the server's jobs. It returns an error until all jobs are stopped and all allocations of the node have
// ended, even those of removed jobs. Processes do not show this: an allocation that the agent has just received has
// none yet, but its cgroup would outlive the agent.
func (n *node) stopJobs() error {
	left, err := agent.Unended(context.Background(), n.Client(), "default", fmt.Sprintf("NodeID == %q", n.id()))
	if err != nil {
		return err
	}
	jobs, _, err := n.Client().Jobs().List(nil)
	errs := []error{err, leftError(left)}
	for _, j := range jobs {
		if !j.Stop {
			errs = append(errs, nomadtest.Stopped(n.Client(), j.ID))
		}
	}
	return errors.Join(errs...)
}

// tasksLeft returns an error with the leftovers of tasks, if any.
func (n *node) tasksLeft() error {
	var left []string
	for _, p := range append(n.processes(), n.installers()...) {
		if !n.infrastructure(p) {
			left = append(left, fmt.Sprintf("process %d %q", p.pid, p.args))
		}
	}
	for _, dir := range n.taskDirs() {
		left = append(left, "state "+dir)
	}
	return leftError(append(left, n.taskCgroups()...))
}

// anythingLeft returns an error with the leftovers of a stopped agent, if any.
func (n *node) anythingLeft() error {
	var left []string
	for _, p := range append(n.processes(), n.installers()...) {
		left = append(left, fmt.Sprintf("process %d %q", p.pid, p.args))
	}
	filepath.WalkDir(n.store(), func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			left = append(left, "file "+path)
		}
		return nil
	})
	left = append(left, n.cacheMounts()...)
	left = append(left, n.taskCgroups()...)
	return leftError(append(left, n.leaves()...))
}

func leftError(left []string) error {
	if len(left) == 0 {
		return nil
	}
	return errors.New("left: " + strings.Join(left, ", "))
}

// infrastructure reports whether a process belongs to the agent, not to a task.
func (n *node) infrastructure(p proc) bool {
	return n.isAgent(p) || n.isPlugin(p) || n.isSupervisor(p) || n.isCollector(p) || n.isUSBPlugin(p) ||
		n.isDatasetPlugin(p) || n.isShim(p)
}

func (n *node) isAgent(p proc) bool { return p.pid == n.Info().Process.PID }

func (n *node) isPlugin(p proc) bool {
	return len(p.args) == 1 && p.args[0] == filepath.Join(n.PluginDir(), agent.DriverPrefix+n.driver)
}

func (n *node) isSupervisor(p proc) bool { return n.isRole(p, "supervise") }

func (n *node) isCollector(p proc) bool { return n.isRole(p, "collect") }

func (n *node) isRole(p proc, role string) bool {
	return len(p.args) == 3 && p.args[0] == "outrider-supervisor" && p.args[1] == role && p.args[2] == n.store()
}

func isLogmon(p proc) bool { return len(p.args) >= 2 && p.args[len(p.args)-1] == "logmon" }

func (n *node) id() string {
	b, _ := os.ReadFile(filepath.Join(n.DataDir(), "client", "client-id"))
	return string(b)
}

// store returns the directory in which the plugin and its supervisor keep their state for this agent.
func (n *node) store() string { return filepath.Join(n.state, n.driver, n.id()) }

func (n *node) taskDirs() []string {
	dirs, _ := filepath.Glob(filepath.Join(n.store(), "tasks", "*"))
	return dirs
}

// where adds the endpoint to a job if the node's driver is remote.
func (n *node) where(j *api.Job, task *api.Task) {
	if n.driver == "remote" {
		onBox(j, task)
	}
}

func (n *node) log() string {
	text, _ := n.Log()
	return text
}

// tellLog shows the lines of the agent's log that can explain a failed test.
func (n *node) tellLog(t *testing.T) {
	var lines []string
	for line := range strings.Lines(n.log()) {
		if strings.Contains(line, "[WARN]") || strings.Contains(line, "[ERROR]") || strings.Contains(line, n.driver) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	t.Logf("the agent's log:\n%s", strings.Join(lines[max(0, len(lines)-60):], "\n"))
}

// restart starts the agent again after Stop or Kill, and waits until it is healthy.
func (n *node) restart(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	must.NoError(t, n.Start(ctx))
	err := agent.WaitHealthy(ctx, n.Agent)
	must.NoError(t, err)
}

// drain drains the node until eligible is called.
func (n *node) drain(t testing.TB, deadline time.Duration) {
	t.Helper()
	_, err := n.Client().Nodes().UpdateDrain(n.id(), &api.DrainSpec{Deadline: deadline}, false, nil)
	must.NoError(t, err)
}

func (n *node) eligible(t testing.TB) {
	t.Helper()
	_, err := n.Client().Nodes().UpdateDrain(n.id(), nil, true, nil)
	must.NoError(t, err)
}
