// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device_test

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
	nomad "github.com/hashicorp/nomad/plugins/device"

	"github.com/outrider-dev/outrider/internal/core/device"
)

// Config is the agent's block: plugin "nomad-device-serial" { config { ... } }.
type Config struct {
	Nodes string `codec:"nodes" default:"/dev/ttyS*" doc:"Which device nodes to give to tasks."`
}

// ports are the host's serial ports. A job requests one with: device "serial" {}.
type ports struct{ nodes string }

// List returns the ports that exist.
func (p ports) List(context.Context) ([]device.Group, error) {
	nodes, err := filepath.Glob(p.nodes)
	group := device.Group{Vendor: "host", Type: "serial", Name: "port"}
	for _, node := range nodes {
		group.Devices = append(group.Devices, device.Device{ID: filepath.Base(node)})
	}
	return []device.Group{group}, err
}

// Reserve returns the device nodes for a task.
func (p ports) Reserve(_ context.Context, ids []string) (*nomad.ContainerReservation, error) {
	r := &nomad.ContainerReservation{Envs: map[string]string{"SERIAL_PORTS": strings.Join(ids, ",")}}
	for _, id := range ids {
		node := filepath.Join(filepath.Dir(p.nodes), id)
		r.Devices = append(r.Devices, &nomad.DeviceSpec{HostPath: node, TaskPath: "/dev/" + id, CgroupPerms: "rw"})
	}
	return r, nil
}

// serial is a whole device plugin.
var serial = device.Plugin[Config]{
	Name:    "serial",
	Summary: "gives serial ports to tasks, each to one",
	New:     func(c Config, _ hclog.Logger) (device.Instance, error) { return ports{c.Nodes}, nil },
}

// A device plugin's main function; TestExample_IsACompletePlugin runs the same plugin.
func Example() {
	device.Main(serial)
}
