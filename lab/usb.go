// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/poll"
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
func (l *Lab) setStick(ctx context.Context, a agent.Agent, want string) error {
	_, _, missing := a.Client().Jobs().Info(simJob, (&api.QueryOptions{}).WithContext(ctx))
	if want == "" && missing != nil {
		return nil
	}
	return l.plug(ctx, a)
}

// plug runs the job of the simulated stick, and waits until the node has the device. The stick is plugged in while the
// job runs.
func (l *Lab) plug(ctx context.Context, a agent.Agent) (err error) {
	end := l.step(ctx, "Plugging in the simulated stick")
	defer func() { end(err, "job %s", simJob) }()
	program := filepath.Join(a.Info().Dir, "usb-stick") // a container has this directory, too
	err = build.Builder{Root: l.root}.Stick(ctx, program)
	if err != nil {
		return err
	}
	_, _, err = a.Client().Jobs().Register(stick(a, program), (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("failed to submit job %s: %w", simJob, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = poll.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		devices, _ := nomad.Devices(ctx, a.Client()) // an error may pass
		plugged := slices.ContainsFunc(devices, isStick)
		return plugged && runs(ctx, a.Client(), simJob), nil // the server may not know yet of one that was just pulled out
	})
	if err != nil {
		return fmt.Errorf("the node has no such device yet: see the output of job %s: %w", simJob, err)
	}
	return nil
}

func isStick(d nomad.Device) bool { return d.Healthy && strings.HasPrefix(d.ID, simID) }

// runs reports whether a job runs and is not being stopped.
func runs(ctx context.Context, c *api.Client, job string) bool {
	allocs, _, err := c.Jobs().Allocations(job, false, (&api.QueryOptions{}).WithContext(ctx))
	return err == nil && slices.ContainsFunc(allocs, func(a *api.AllocationListStub) bool {
		return a.DesiredStatus == api.AllocDesiredStatusRun && a.ClientStatus == api.AllocClientStatusRunning
	})
}

// stick is the job of the simulated stick.
func stick(a agent.Agent, program string) *api.Job {
	task := api.NewTask("stick", "exec-lite").
		SetConfig("command", program).SetConfig("args", []string{"-id", simID, a.StateDir() + simRoot}).
		Require(&api.Resources{CPU: new(20), MemoryMB: new(32)})
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	group := api.NewTaskGroup("stick", 1).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	return api.NewServiceJob(simJob, simJob, "global", 50).AddTaskGroup(group)
}
