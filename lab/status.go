// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// Status prints the agent and the plugins with their health, and what the nomad program says of jobs, volumes and
// nodes. A lab that is not up is not an error.
func (l *Lab) Status(ctx context.Context) error {
	a, err := agent.Open(ctx, l.dir)
	if errors.Is(err, agent.ErrNone) {
		l.say("The lab is not up. Start it with: %s lab:up", mage)
		return nil
	}
	if err != nil {
		return err
	}
	if err := a.Alive(ctx); err != nil {
		l.say("The lab's agent has ended. Start it again, or remove it, with:\n")
		l.hint("lab:up")
		l.hint("lab:down\n")
		return err
	}
	i := a.Info()
	pid, err := a.PID(ctx)
	if err != nil {
		return err
	}
	l.say("Agent    %s, pid %d, runtime %s, in %s", a.Address(), pid, i.Runtime, i.Dir)
	l.say("Web UI   %s/ui", a.Address())
	if exists(l.poolDir()) {
		l.say("Datasets zfs-fuse, in %s", l.poolDir())
	}
	if port := l.hostPort(); port != 0 {
		l.say("Host     %s, by SSH to 127.0.0.1:%d", endpoint, port)
	}
	l.say("")
	if err := l.table(ctx, a); err != nil {
		return err
	}
	lists := [][]string{{"job", "status", "-namespace=*"}}
	if exists(l.poolDir()) {
		lists = append(lists, []string{"volume", "status", "-namespace=*", "-type=host"})
	}
	if exists(filepath.Join(l.dir, nodesDir)) {
		lists = append(lists, []string{"node", "status"})
	}
	for _, args := range lists {
		l.say("\n$ nomad %s", strings.Join(args, " "))
		if err := l.nomad(ctx, a, args...); err != nil {
			return err
		}
	}
	return nil
}

// nomad shows what the nomad program prints.
func (l *Lab) nomad(ctx context.Context, a agent.Agent, args ...string) error {
	cmd := nomadCommand(ctx, a, args...)
	cmd.Stdout, cmd.Stderr = l.out, l.errOut
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("failed to run nomad %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// table prints the plugins with version and health, and the devices.
func (l *Lab) table(ctx context.Context, a agent.Agent) error {
	got, err := drivers(ctx, a)
	if err != nil {
		return err
	}
	plugins, err := devicePlugins(ctx, a)
	if err != nil {
		return err
	}
	all := rows(got)
	all = slices.Insert(all, len(all)-1, plugins...) // before raw_exec
	if err := term.Table(l.out, all...); err != nil {
		return err
	}
	if len(plugins) == 0 {
		return nil
	}
	published, err := devices(ctx, a)
	if err != nil {
		return err
	}
	l.say("")
	if len(published) == 0 {
		l.say("No devices.")
		return nil
	}
	return term.Table(l.out, deviceRows(published)...)
}

// drivers returns the lab's task drivers, and raw_exec, with their health.
func drivers(ctx context.Context, a agent.Agent) ([]nomad.Driver, error) {
	found, err := nomad.Health(ctx, a.Client(), append(a.Info().Drivers(), "raw_exec")...)
	return found, asked(err)
}

// devices returns what device plugins publish.
func devices(ctx context.Context, a agent.Agent) ([]nomad.Device, error) {
	found, err := nomad.Devices(ctx, a.Client())
	return found, asked(err)
}

// asked is the error of a question. That something is not healthy is an answer.
func asked(err error) error {
	var unhealthy *nomad.NotHealthyError
	if errors.As(err, &unhealthy) {
		return nil
	}
	return err
}

// jobs returns the jobs of all namespaces.
func jobs(ctx context.Context, a agent.Agent) ([]*api.JobListStub, error) {
	list, _, err := a.Client().Jobs().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("failed to list jobs: %w", err)
	}
	return list, nil
}

func rows(drivers []nomad.Driver) [][]string {
	rows := [][]string{{"PLUGIN", "VERSION", "HEALTH", "MESSAGE"}}
	for _, d := range drivers {
		version := d.Version
		if d.Name == "raw_exec" {
			version = "built in"
		}
		rows = append(rows, []string{d.Name, version, health(d), d.Description})
	}
	return rows
}

func health(d nomad.Driver) string {
	switch {
	case d.Healthy:
		return "healthy"
	case d.Detected:
		return "unhealthy"
	case d.Description != "":
		return "undetected"
	default:
		return "missing"
	}
}

// nomadCommand runs the nomad program with the agent's address, whatever NOMAD_ADDR and NOMAD_TOKEN say. Variables of
// job files stay.
func nomadCommand(ctx context.Context, a agent.Agent, args ...string) *exec.Cmd {
	elsewhere := func(v string) bool {
		return strings.HasPrefix(v, "NOMAD_") && !strings.HasPrefix(v, "NOMAD_VAR_")
	}
	cmd := exec.CommandContext(ctx, a.Info().Binary, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), elsewhere), "NOMAD_ADDR="+a.Address(), "NOMAD_CLI_SHOW_HINTS=false")
	return cmd
}

func joined(s []string) string { return strings.Join(s, ", ") }

// devicePlugins returns the table's rows of the device plugins. Nomad's API does not list them: whether one runs
// follows from the processes, and the version comes from the plugin's own binary.
func devicePlugins(ctx context.Context, a agent.Agent) ([][]string, error) {
	names := a.Info().DevicePlugins()
	if len(names) == 0 {
		return nil, nil
	}
	pids, err := a.PluginPIDs(ctx)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, name := range names {
		version := ""
		if out, err := a.Exec(ctx, path.Join(a.PluginDir(), name), "version"); err == nil {
			line, _, _ := strings.Cut(out, "\n") // "nomad-device-usb 0.1.0", and a remark
			_, version, _ = strings.Cut(line, " ")
			version, _, _ = strings.Cut(version, " ")
		}
		health, message := "healthy", "Runs"
		if pids[name] == 0 {
			health, message = "missing", "Does not run: the agent's log says why"
		}
		rows = append(rows, []string{strings.TrimPrefix(name, agent.DevicePrefix), version, health, message})
	}
	return rows, nil
}

// deviceRows is the table of what device plugins publish.
func deviceRows(devices []nomad.Device) [][]string {
	rows := [][]string{{"DEVICE", "ID", "HEALTH", "MESSAGE"}}
	for _, d := range devices {
		health := "healthy"
		if !d.Healthy {
			health = "unhealthy"
		}
		rows = append(rows, []string{d.Group, d.ID, health, d.Description})
	}
	return rows
}
