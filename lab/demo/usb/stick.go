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

// stick is a USB stick: a job of the demo's agent that simulates one, or a real one that the user plugs.
type stick struct {
	id        string
	simulated bool
}

// realNodes is not below /tmp, which may be mounted with nodev.
const realNodes = "/dev/nomad-usb-demo"

// config is the plugin's.
func (s stick) config() string {
	nodes, more := realNodes, ""
	if s.simulated {
		nodes = "${state_dir}/usb-nodes"
		more = `root   = "${state_dir}/usb"
rescan = "200ms" # the kernel reports no simulated stick
`
	}
	return more + fmt.Sprintf(`shadow_dir = %q
grace      = "1m"
device "zigbee" {
  id   = %q
  mode = "0666"
}`, nodes, s.id)
}

// remark explains the stick to the audience.
func (s stick) remark() string {
	if !s.simulated {
		return ""
	}
	return " (a simulated one: job \"stick\" runs nomad-device-usb simulate, and is unplugged by stopping it)"
}

// plug plugs the stick in or pulls it out. It returns the time when the kernel, or its simulation,
// reported the change.
func (s stick) plug(ctx context.Context, a agent.Agent, in bool) (at time.Time, err error) {
	if now, err := s.plugged(ctx, a); err != nil || now == in {
		return time.Now(), err
	}
	switch {
	case !s.simulated && in:
		stage.Note(">>> Please plug in %s now.", s.id)
	case !s.simulated:
		stage.Note(">>> Please pull out %s now.", s.id)
	case in:
		_, _, err = a.Client().Jobs().Register(s.job(a), nil)
	default:
		_, _, err = a.Client().Jobs().Deregister("stick", true, nil)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("failed to start or stop the stick: %w", err)
	}
	err = stage.Until(ctx, "the stick", func() (bool, error) {
		now, err := s.plugged(ctx, a)
		at = time.Now()
		return now == in, err
	})
	return at, err
}

// job simulates the stick.
func (s stick) job(a agent.Agent) *api.Job {
	task := api.NewTask("stick", "exec-lite").
		SetConfig("command", path.Join(a.PluginDir(), "nomad-device-usb")).
		SetConfig("args", []string{"simulate", s.root(a), "-id", s.id, "-serial", "0001"}).
		Require(&api.Resources{CPU: new(20), MemoryMB: new(32)})
	return api.NewServiceJob("stick", "stick", "global", 50).AddTaskGroup(api.NewTaskGroup("stick", 1).AddTask(task))
}

// root is the directory whose sys directory has the stick.
func (s stick) root(a agent.Agent) string {
	if s.simulated {
		return a.StateDir() + "/usb"
	}
	return "/"
}

// plugged reports whether the agent's host has the device.
func (s stick) plugged(ctx context.Context, a agent.Agent) (bool, error) {
	const script = `cd "$1/sys/bus/usb/devices" 2>/dev/null || exit 0
for d in *; do [ "$(cat $d/idVendor $d/idProduct 2>/dev/null | tr -d '\n')" = "$2" ] && echo yes; done; true`
	out, err := a.Exec(ctx, "sh", "-c", script, "sh", s.root(a), strings.ReplaceAll(s.id, ":", ""))
	return out != "", err
}
