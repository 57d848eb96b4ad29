// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/stage"
)

// stick is a USB stick. plug and unplug wait until the kernel reports the change and return its
// time. unplug succeeds if the stick is not plugged in.
type stick interface {
	fmt.Stringer // a remark for the audience
	plug(context.Context, agent.Agent) (time.Time, error)
	unplug(context.Context, agent.Agent) (time.Time, error)
}

const simulatedID = "10c4:ea60"

const simulatedConfig = `root       = "${state_dir}/usb"
shadow_dir = "${state_dir}/usb-nodes"
rescan     = "200ms" # the kernel reports no simulated stick
grace      = "1m"
device "zigbee" {
  id   = "` + simulatedID + `"
  mode = "0666"
}`

// simulated is a job of the demo's agent.
type simulated struct{}

func (simulated) String() string {
	return " (a simulated one: job \"stick\" runs nomad-device-usb simulate, and is unplugged by stopping it)"
}

func (simulated) plug(ctx context.Context, a agent.Agent) (time.Time, error) {
	root := a.StateDir() + "/usb"
	task := api.NewTask("stick", "exec-lite").
		SetConfig("command", path.Join(a.PluginDir(), "nomad-device-usb")).
		SetConfig("args", []string{"simulate", root, "-id", simulatedID, "-serial", "0001"}).
		Require(&api.Resources{CPU: new(20), MemoryMB: new(32)})
	job := api.NewServiceJob("stick", "stick", "global", 50).AddTaskGroup(api.NewTaskGroup("stick", 1).AddTask(task))
	if _, _, err := a.Client().Jobs().Register(job, nil); err != nil {
		return time.Time{}, fmt.Errorf("failed to submit the stick: %w", err)
	}
	return becomes(ctx, a, root, simulatedID, true)
}

func (simulated) unplug(ctx context.Context, a agent.Agent) (time.Time, error) {
	root := a.StateDir() + "/usb"
	if in, err := plugged(ctx, a, root, simulatedID); err != nil || !in {
		return time.Now(), err
	}
	if _, _, err := a.Client().Jobs().Deregister("stick", true, nil); err != nil {
		return time.Time{}, fmt.Errorf("failed to stop the stick: %w", err)
	}
	return becomes(ctx, a, root, simulatedID, false)
}

// realNodes is not below /tmp, which may be mounted with nodev.
const realNodes = "/dev/nomad-usb-demo"

const realConfig = `shadow_dir = "NODES"
grace      = "1m"
device "zigbee" {
  id   = "ID"
  mode = "0666"
}`

// real is a stick that the user plugs.
type real struct{ id string }

func (r real) String() string { return "" }

func (r real) plug(ctx context.Context, a agent.Agent) (time.Time, error) {
	stage.Note(">>> Please plug in %s now.", r.id)
	return becomes(ctx, a, "/", r.id, true)
}

func (r real) unplug(ctx context.Context, a agent.Agent) (time.Time, error) {
	if in, err := plugged(ctx, a, "/", r.id); err != nil || !in {
		return time.Now(), err
	}
	stage.Note(">>> Please pull out %s now.", r.id)
	return becomes(ctx, a, "/", r.id, false)
}

// becomes waits until the kernel, or its simulation, has the device or no longer has it.
func becomes(ctx context.Context, a agent.Agent, root, id string, there bool) (at time.Time, err error) {
	err = stage.Until(ctx, "the stick", func() (bool, error) {
		in, err := plugged(ctx, a, root, id)
		at = time.Now()
		return in == there, err
	})
	return at, err
}

// plugged reports whether the agent's host has the device below root.
func plugged(ctx context.Context, a agent.Agent, root, id string) (bool, error) {
	vendor, product, _ := strings.Cut(id, ":")
	const script = `cd "$1/sys/bus/usb/devices" 2>/dev/null || exit 0
for d in *; do [ "$(cat $d/idVendor $d/idProduct 2>/dev/null | tr -d '\n')" = "$2" ] && echo yes; done; true`
	out, err := a.Exec(ctx, "sh", "-c", script, "sh", root, vendor+product)
	return out != "", err
}
