// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package harness ends the harness in which Nomad tests drivers.
package harness

import (
	"reflect"

	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
)

// Kill ends a driver's harness as its own Kill does, but without that one's data race: closing the client stops the
// server, and go-plugin can't stop it twice at once.
func Kill(h *testutils.DriverHarness) {
	client := reflect.ValueOf(h).Elem().FieldByName("client")
	_ = (*plugin.GRPCClient)(client.UnsafePointer()).Close()
}
