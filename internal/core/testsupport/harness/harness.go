// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package harness ends Nomad's test harness for drivers.
package harness

import (
	"reflect"

	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
)

// Kill ends a driver's harness like DriverHarness.Kill, but without its data race: closing the client stops the server,
// and go-plugin does not support two concurrent stops.
func Kill(h *testutils.DriverHarness) {
	client := reflect.ValueOf(h).Elem().FieldByName("client")
	_ = (*plugin.GRPCClient)(client.UnsafePointer()).Close()
}
