// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-driver-remote runs tasks on other hosts over SSH.
package main

import (
	core "github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/remote/command"
	"github.com/outrider-dev/outrider/plugins/remote/driver"
)

func main() {
	plugin := driver.Plugin()
	plugin.Commands = command.All()
	core.Main(plugin)
}
