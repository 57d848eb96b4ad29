// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// state is the state of the lab that StatusJSON prints. Devices are in the format of Nomad's API.
type state struct {
	Up      bool                      `json:"up"`
	Address string                    `json:"address,omitempty"`
	Runtime agent.Runtime             `json:"runtime,omitempty"`
	Dir     string                    `json:"dir,omitempty"`
	Drivers []nomad.Driver            `json:"drivers,omitempty"`
	Devices []*api.NodeDeviceResource `json:"devices,omitempty"`
}

// StatusJSON prints the state of the lab as one JSON object. If the lab's agent does not run, up is false.
func (l *Lab) StatusJSON(ctx context.Context) error {
	var s state
	a, err := l.open(ctx)
	if err == nil {
		s, err = stateOf(ctx, a)
	}
	if err != nil && !errors.Is(err, errDown) && !errors.Is(err, errEnded) {
		return err
	}
	return plain.JSON(l.out, s)
}

func stateOf(ctx context.Context, a agent.Agent) (state, error) {
	s := state{Up: true, Address: a.Address(), Runtime: a.Info().Runtime, Dir: a.Info().Dir}
	node, err := nomad.Self(ctx, a.Client(), a.DataDir())
	if errors.Is(err, nomad.ErrNotRegistered) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.Drivers, _ = nomad.Health(node, append(a.Info().Drivers(), "raw_exec")...) // the error only sums up Drivers
	s.Devices = node.NodeResources.Devices
	return s, nil
}

// Status prints the agent, the health of plugins, and the output of `nomad job status` and `nomad node status`. If the
// lab is not up, Status reports that without an error.
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
	l.say("Web UI   %s/ui\n", a.Address())
	if err := l.table(ctx, a); err != nil {
		return err
	}
	for _, list := range []string{"job", "node"} {
		l.say("\n$ nomad %s status", list)
		if err := l.nomad(ctx, a, list, "status", "-namespace=*"); err != nil {
			return err
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
	if err := term.Table(l.out, rows...); err != nil {
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

// nomad runs the nomad program, and passes its output and its errors on to the user.
func (l *Lab) nomad(ctx context.Context, a agent.Agent, args ...string) error {
	cmd := nomadCommand(ctx, a, args...)
	cmd.Stdout, cmd.Stderr = l.out, l.errOut
	err := cmd.Run()
	if err != nil {
		return fmt.Errorf("failed to run nomad %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// nomadCommand returns a command of the nomad program that connects to a. From this process's NOMAD_ variables, such as
// NOMAD_ADDR and NOMAD_TOKEN, it keeps only NOMAD_VAR_ ones, which are for job files.
func nomadCommand(ctx context.Context, a agent.Agent, args ...string) *exec.Cmd {
	elsewhere := func(v string) bool {
		return strings.HasPrefix(v, "NOMAD_") && !strings.HasPrefix(v, "NOMAD_VAR_")
	}
	cmd := exec.CommandContext(ctx, a.Info().Binary, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), elsewhere), "NOMAD_ADDR="+a.Address(), "NOMAD_CLI_SHOW_HINTS=false")
	return cmd
}

func joined(s []string) string { return strings.Join(s, ", ") }
