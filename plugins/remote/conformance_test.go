// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

func TestMain(m *testing.M) {
	// On the host, this test binary is the shim. conformance.Main knows only the plugin, and would run tests there.
	for _, role := range driver.Plugin().Roles {
		if role() {
			return
		}
	}
	testsupport.RunInParallel(8) // the tests mostly wait until an idle supervisor ends
	conformance.Main(m, main)
}

func TestDriver_Conforms(t *testing.T) {
	server := sshdtest.Start(t)
	dir, err := os.MkdirTemp("", "or") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	conformance.Driver{
		Config: server.Endpoint("box", dir, server.Port),
		Task: `{ "endpoint": "box", "command": "/bin/sh", "args": ["-c", "SCRIPT"],
			"on_drain": "stop", "on_lost": "restart" }`, // otherwise, without an API, a stop would only release the run
		Files: func(allocDir string) string { return shim.AllocDir(dir, filepath.Base(allocDir)) },
	}.Test(t)
}
