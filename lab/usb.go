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

	simRoot = "/usb"      // the simulation's root, in the state directory
	simJob  = "usb-sim"   // the job that simulates the stick
	simType = "zigbee"    // the type of device that jobs request
	simID   = "10c4:ea60" // a CP2102 serial converter, as in most Zigbee sticks
)

// usbConfig is the usb plugin's configuration. It publishes only a simulated stick, never the user's devices. The
// device nodes are in the lab's directory, because other labs and the user would share the default directory.
const usbConfig = `shadow_dir = "${state_dir}/usb-nodes"
root       = "${state_dir}` + simRoot + `"
rescan     = "500ms" # the kernel sends no events for a simulated stick

device "` + simType + `" {
  id   = "` + simID + `"
  mode = "0666" # for any task user
}`

// setStick starts the job that simulates the stick, if want is set or the lab already has the job. The stick is plugged
// in while the job runs.
func (l *Lab) setStick(ctx context.Context, a agent.Agent, want string) (err error) {
	_, _, missing := a.Client().Jobs().Info(simJob, (&api.QueryOptions{}).WithContext(ctx))
	if want == "" && missing != nil {
		return nil
	}
	end := l.step(ctx, "Plugging in the simulated stick")
	defer func() { end(err, "job %s", simJob) }()
	program := filepath.Join(a.Info().Dir, "usb-stick") // a container also has this directory
	err = build.Builder{Root: l.root}.Stick(ctx, program)
	if err != nil {
		return err
	}
	job := service(simJob, &api.Resources{CPU: new(20), MemoryMB: new(32)}, program, "-id", simID, a.StateDir()+simRoot)
	return serve(ctx, a, job, func(ctx context.Context) bool {
		node, err := nomad.Self(ctx, a.Client(), a.DataDir()) // after an error, serve calls this again
		return err == nil && slices.ContainsFunc(node.NodeResources.Devices, hasStick)
	})
}

// hasStick reports whether a group of devices has a healthy stick. After a stick is unplugged, the server may list it
// for a moment.
func hasStick(g *api.NodeDeviceResource) bool {
	return slices.ContainsFunc(g.Instances, func(d *api.NodeDevice) bool {
		return d.Healthy && strings.HasPrefix(d.ID, simID)
	})
}
