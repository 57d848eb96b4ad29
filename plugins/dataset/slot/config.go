// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package slot

import (
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/dataset/holder"
)

// Config is the agent's block: plugin "nomad-device-dataset" { config { ... } }.
type Config struct {
	File  string          `codec:"file" default:"/etc/outrider/dataset.hcl" doc:"The operator's file with the classes, absolute. Only root may be able to change it."`
	Sweep schema.Duration `codec:"sweep" default:"30s" min:"200ms" doc:"Time between looks for scratch whose task has gone."`
	Grace schema.Duration `codec:"grace" default:"10s" max:"30s" doc:"How long a reservation waits for a slot whose former task still uses it."`

	MountsForAll bool `codec:"mounts_for_all" default:"false" doc:"Also mount slots in tasks of drivers that are not Outrider's, such as docker. Nomad then forgets the volumes of a task that has both, and the slot when the agent and then the task are restarted: see What is not promised."`

	API holder.API `codec:"api" doc:"How the plugin asks Nomad who holds a slot."`
}
