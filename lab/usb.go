// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/nomad"
)

const (
	usbPlugin = agent.DevicePrefix + "usb"

	simRoot = "/usb"      // of the simulation, below the state directory
	simJob  = "usb-sim"   // the job that is the stick
	simType = "zigbee"    // the type of device that jobs request
	simID   = "10c4:ea60" // what most Zigbee sticks are: a CP2102 serial converter
)

// usbConfig is the usb plugin's configuration. The lab publishes a simulated stick, if there is one, and never the
// user's own devices. Its device nodes are in a directory of the lab: the default directory is shared by the machine.
const usbConfig = `shadow_dir = "${state_dir}/usb-nodes"
root       = "${state_dir}` + simRoot + `"
rescan     = "500ms" # the kernel reports no simulated stick

device "` + simType + `" {
  id   = "` + simID + `"
  mode = "0666" # whatever user the task has
}`

// setStick plugs the simulated stick in, if it is wanted or the lab has had it.
// The stick is plugged in while its job runs.
func (l *Lab) setStick(ctx context.Context, a agent.Agent, want string) (err error) {
	_, _, missing := a.Client().Jobs().Info(simJob, (&api.QueryOptions{}).WithContext(ctx))
	if want == "" && missing != nil {
		return nil
	}
	end := l.step(ctx, "Plugging in the simulated stick")
	defer func() { end(err, "job %s", simJob) }()
	program := filepath.Join(a.Info().Dir, "usb-stick") // a container has this directory, too
	err = build.Builder{Root: l.root}.Stick(ctx, program)
	if err != nil {
		return err
	}
	job := service(simJob, &api.Resources{CPU: new(20), MemoryMB: new(32)}, program, "-id", simID, a.StateDir()+simRoot)
	return serve(ctx, a, job, func(ctx context.Context) bool {
		devices, _ := nomad.Devices(ctx, a.Client()) // an error may pass
		return slices.ContainsFunc(devices, isStick) // the server may not know yet of one that was just pulled out
	})
}

func isStick(d nomad.Device) bool { return d.Healthy && strings.HasPrefix(d.ID, simID) }
