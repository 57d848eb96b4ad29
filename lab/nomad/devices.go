// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Device is one instance of a group of devices on the node.
type Device struct {
	Group       string // vendor/type/name
	ID          string
	Healthy     bool
	Description string   // the plugin's message, if it is not healthy
	Users       []string // jobs that have it, with the task: "job/task"
}

// Devices lists the devices of the agent's own node, ordered by group and id. They are as the server knows them: the
// agent reports a change after 5 to 10 s (client/client.go, watchNodeUpdates).
func Devices(ctx context.Context, c *api.Client) ([]Device, error) {
	node, err := selfNode(ctx, c)
	if err != nil {
		return nil, err
	}
	q := (&api.QueryOptions{Namespace: "*", Params: map[string]string{"resources": "true"}}).WithContext(ctx)
	allocs, _, err := c.Allocations().List(q)
	if err != nil {
		return nil, fmt.Errorf("failed to list allocations: %w", err)
	}
	return devicesOf(node, allocs), nil
}

// Ended reports whether no task of an allocation runs any more.
func Ended(a *api.AllocationListStub) bool {
	return (&api.Allocation{ClientStatus: a.ClientStatus}).ClientTerminalStatus()
}

func devicesOf(node *api.Node, allocs []*api.AllocationListStub) []Device {
	if node.NodeResources == nil {
		return nil
	}
	users := map[string][]string{}
	for _, a := range allocs {
		if Ended(a) || a.AllocatedResources == nil {
			continue
		}
		for name, task := range a.AllocatedResources.Tasks {
			for _, d := range task.Devices {
				for _, id := range d.DeviceIDs {
					users[id] = append(users[id], a.JobID+"/"+name)
				}
			}
		}
	}
	var found []Device
	for _, g := range node.NodeResources.Devices {
		for _, d := range g.Instances {
			slices.Sort(users[d.ID])
			found = append(found, Device{
				Group: g.ID(), ID: d.ID, Healthy: d.Healthy, Description: d.HealthDescription, Users: users[d.ID],
			})
		}
	}
	slices.SortFunc(found, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.ID, b.ID))
	})
	return found
}
