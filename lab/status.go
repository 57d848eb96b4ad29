// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// state is the lab's status for programs. Devices, nodes and jobs are as Nomad's API lists them.
type state struct {
	Up      bool                      `json:"up"`
	Address string                    `json:"address,omitempty"`
	Runtime agent.Runtime             `json:"runtime,omitempty"`
	Dir     string                    `json:"dir,omitempty"`
	Drivers []nomad.Driver            `json:"drivers,omitempty"`
	Devices []*api.NodeDeviceResource `json:"devices,omitempty"`
	Nodes   []*api.NodeListStub       `json:"nodes,omitempty"`
	Jobs    []*api.JobListStub        `json:"jobs,omitempty"`
}

// StatusJSON prints the state of the lab as one JSON object. For a lab whose agent does not run, up is false.
func (l *Lab) StatusJSON(ctx context.Context) error {
	var s state
	a, err := l.open(ctx)
	if err == nil {
		s, err = stateOf(ctx, a)
	}
	if err != nil && !errors.Is(err, errDown) && !errors.Is(err, errEnded) {
		return err
	}
	out := json.NewEncoder(l.out)
	out.SetIndent("", "  ")
	return out.Encode(s)
}

func stateOf(ctx context.Context, a agent.Agent) (state, error) {
	s := state{Up: true, Address: a.Address(), Runtime: a.Info().Runtime, Dir: a.Info().Dir}
	node, err := nomad.Self(ctx, a.Client())
	var unhealthy nomad.NotHealthyError // not a failure: the health is part of the state
	switch {
	case err == nil:
		s.Drivers, _ = nomad.Health(node, append(a.Info().Drivers(), "raw_exec")...)
		s.Devices = node.NodeResources.Devices
	case !errors.As(err, &unhealthy):
		return s, err
	}
	q := (&api.QueryOptions{Namespace: "*"}).WithContext(ctx)
	if s.Nodes, _, err = a.Client().Nodes().List(q); err != nil {
		return s, fmt.Errorf("failed to list nodes: %w", err)
	}
	s.Jobs, err = jobs(ctx, a)
	return s, err
}

// jobs returns the jobs of all namespaces.
func jobs(ctx context.Context, a agent.Agent) ([]*api.JobListStub, error) {
	list, _, err := a.Client().Jobs().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("failed to list jobs: %w", err)
	}
	return list, nil
}

// Status prints the agent, the plugins with their health, and the nomad program's status of jobs, volumes and nodes. A
// lab that is not up is not an error.
func (l *Lab) Status(ctx context.Context) error {
	a, err := l.open(ctx)
	if errors.Is(err, errDown) {
		l.say("The lab is not up. Start it with: %s lab:up", mage)
		return nil
	}
	if err != nil {
		return err
	}
	l.say("Agent    %s, runtime %s, in %s", a.Address(), a.Info().Runtime, a.Info().Dir)
	l.say("Web UI   %s/ui", a.Address())
	if testsupport.Exists(l.poolDir()) {
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
	if testsupport.Exists(l.poolDir()) {
		lists = append(lists, []string{"volume", "status", "-namespace=*", "-type=host"})
	}
	if testsupport.Exists(filepath.Join(l.dir, nodesDir)) {
		lists = append(lists, []string{"node", "status"})
	}
	for _, args := range lists {
		command := strings.Join(args, " ")
		l.say("\n$ nomad %s", command)
		cmd := nomadCommand(ctx, a, args...)
		cmd.Stdout, cmd.Stderr = l.out, l.errOut
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("failed to run nomad %s: %w", command, err)
		}
	}
	return nil
}

// table prints the drivers with version and health, and the devices.
func (l *Lab) table(ctx context.Context, a agent.Agent) error {
	s, err := stateOf(ctx, a)
	if err != nil {
		return err
	}
	rows := [][]string{{"PLUGIN", "VERSION", "HEALTH", "MESSAGE"}}
	for _, d := range s.Drivers {
		rows = append(rows, []string{d.Name, d.Version, d.Health(), d.Description})
	}
	if err := term.Table(l.out, rows...); err != nil || len(a.Info().DevicePlugins()) == 0 {
		return err
	}
	l.say("")
	rows = [][]string{{"DEVICE", "ID", "HEALTH", "MESSAGE"}}
	for _, g := range s.Devices {
		for _, d := range g.Instances {
			health := "healthy"
			if !d.Healthy {
				health = "unhealthy"
			}
			rows = append(rows, []string{g.ID(), d.ID, health, d.HealthDescription})
		}
	}
	if len(rows) == 1 {
		l.say("No devices.")
		return nil
	}
	slices.SortFunc(rows[1:], slices.Compare)
	return term.Table(l.out, rows...)
}

// nomadCommand returns a command of the nomad program for the agent. It drops this process's NOMAD_ADDR, NOMAD_TOKEN
// and other NOMAD_ variables, except NOMAD_VAR_ ones, which are for job files.
func nomadCommand(ctx context.Context, a agent.Agent, args ...string) *exec.Cmd {
	elsewhere := func(v string) bool {
		return strings.HasPrefix(v, "NOMAD_") && !strings.HasPrefix(v, "NOMAD_VAR_")
	}
	cmd := exec.CommandContext(ctx, a.Info().Binary, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), elsewhere), "NOMAD_ADDR="+a.Address(), "NOMAD_CLI_SHOW_HINTS=false")
	return cmd
}

func joined(s []string) string { return strings.Join(s, ", ") }
