// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
)

func TestDevices_ListTheirUsers(t *testing.T) {
	group := func(vendor, kind, name string, devices ...*api.NodeDevice) *api.NodeDeviceResource {
		return &api.NodeDeviceResource{Vendor: vendor, Type: kind, Name: name, Instances: devices}
	}
	node := &api.Node{NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{
		group("10c4", "zigbee", "ea60", &api.NodeDevice{ID: "10c4:ea60:2", Healthy: true},
			&api.NodeDevice{ID: "10c4:ea60:1", Healthy: true}),
		group("0403", "gps", "6001", &api.NodeDevice{ID: "0403:6001:x", HealthDescription: "unplugged"}),
	}}}
	alloc := func(job, status, id string) *api.AllocationListStub {
		return &api.AllocationListStub{JobID: job, ClientStatus: status, AllocatedResources: &api.AllocatedResources{
			Tasks: map[string]*api.AllocatedTaskResources{"main": {
				Devices: []*api.AllocatedDeviceResource{{DeviceIDs: []string{id}}},
			}},
		}}
	}
	got := devicesOf(node, []*api.AllocationListStub{
		alloc("b", "running", "10c4:ea60:1"), alloc("a", "pending", "10c4:ea60:1"), alloc("past", "complete", "10c4:ea60:2"),
		{JobID: "none"},
	})
	want := []Device{
		{Group: "0403/gps/6001", ID: "0403:6001:x", Description: "unplugged"},
		{Group: "10c4/zigbee/ea60", ID: "10c4:ea60:1", Healthy: true, Users: []string{"a/main", "b/main"}},
		{Group: "10c4/zigbee/ea60", ID: "10c4:ea60:2", Healthy: true},
	}
	test.Eq(t, want, got, test.Sprintf("got\n%+v", got))
	test.Nil(t, devicesOf(&api.Node{}, nil), test.Sprint("a node without resources"))
}
