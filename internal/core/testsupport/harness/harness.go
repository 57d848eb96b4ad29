// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package harness ends Nomad's test harness for drivers.
package harness

import (
	"reflect"

	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
)

// Kill ends a driver's harness. It only closes the client, which stops the server too. DriverHarness.Kill stops the
// server a second time, concurrently, which is a data race in go-plugin.
func Kill(h *testutils.DriverHarness) {
	client := reflect.ValueOf(h).Elem().FieldByName("client")
	_ = (*plugin.GRPCClient)(client.UnsafePointer()).Close()
}
