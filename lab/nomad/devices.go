// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"cmp"
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Device is one instance of a group of devices on the node.
type Device struct {
	Group       string // vendor/type/name
	ID          string
	Healthy     bool
	Description string // the plugin's message, if it is not healthy
}

// Devices lists the devices of the agent's own node, ordered by group and id. They are as the server knows them: the
// agent reports a change after 5 to 10 s (client/client.go, watchNodeUpdates).
func Devices(ctx context.Context, c *api.Client) ([]Device, error) {
	node, err := selfNode(ctx, c)
	if err != nil {
		return nil, err
	}
	return devicesOf(node), nil
}

// Ended reports whether no task of an allocation runs any more.
func Ended(a *api.AllocationListStub) bool {
	return (&api.Allocation{ClientStatus: a.ClientStatus}).ClientTerminalStatus()
}

func devicesOf(node *api.Node) []Device {
	if node.NodeResources == nil {
		return nil
	}
	var found []Device
	for _, g := range node.NodeResources.Devices {
		for _, d := range g.Instances {
			found = append(found, Device{g.ID(), d.ID, d.Healthy, d.HealthDescription})
		}
	}
	slices.SortFunc(found, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.ID, b.ID))
	})
	return found
}
