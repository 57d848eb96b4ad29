// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-driver-python runs Python programs under Nomad: the interpreter is chosen by version, what the program
// requires is in a sealed environment of the node's cache, and an exception that ends it appears in the task's events.
package main

import (
	core "github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/python/driver"
)

func main() { core.Main(driver.Plugin()) }
