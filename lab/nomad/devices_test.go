// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
)

func TestDevices_AreInOrder(t *testing.T) {
	group := func(vendor, kind, name string, devices ...*api.NodeDevice) *api.NodeDeviceResource {
		return &api.NodeDeviceResource{Vendor: vendor, Type: kind, Name: name, Instances: devices}
	}
	node := &api.Node{NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{
		group("10c4", "zigbee", "ea60", &api.NodeDevice{ID: "10c4:ea60:2", Healthy: true},
			&api.NodeDevice{ID: "10c4:ea60:1", Healthy: true}),
		group("0403", "gps", "6001", &api.NodeDevice{ID: "0403:6001:x", HealthDescription: "unplugged"}),
	}}}
	got := devicesOf(node)
	want := []Device{
		{Group: "0403/gps/6001", ID: "0403:6001:x", Description: "unplugged"},
		{Group: "10c4/zigbee/ea60", ID: "10c4:ea60:1", Healthy: true},
		{Group: "10c4/zigbee/ea60", ID: "10c4:ea60:2", Healthy: true},
	}
	test.Eq(t, want, got, test.Sprintf("got\n%+v", got))
	test.Nil(t, devicesOf(&api.Node{}), test.Sprint("a node without resources"))
}
