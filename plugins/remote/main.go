// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-driver-remote runs tasks on hosts that are reached by SSH, and in Docker and Podman engines. A drain or
// the loss of the Nomad node does not restart them: the next node takes them over.
package main

import (
	core "github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/remote/command"
	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/upload"
)

func main() {
	upload.Main()
	simulate.Main()
	p := driver.Plugin()
	p.Commands = append(command.All(), simulate.Command())
	core.Main(p)
}
