// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-driver-python runs Python programs under Nomad. It chooses the interpreter by version, installs the
// program's requirements in a sealed environment of the node's cache, and reports uncaught exceptions as task events.
package main

import (
	core "github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/python/driver"
)

func main() { core.Main(driver.Plugin()) }
