// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"path"
	"strings"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/nomad"
)

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
	rows := [][]string{{"DEVICE", "ID", "HEALTH", "USED BY", "MESSAGE"}}
	for _, d := range devices {
		health := "healthy"
		if !d.Healthy {
			health = "unhealthy"
		}
		rows = append(rows, []string{d.Group, d.ID, health, joined(d.Users), d.Description})
	}
	return rows
}
