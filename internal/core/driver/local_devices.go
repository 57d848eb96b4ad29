// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/reservation"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// devices are what device plugins reserved for a task: what Nomad passes, and what
// it has forgotten since the agent was restarted. (There are no mounts of volumes:
// see Capabilities.)
func devices(cfg *drivers.TaskConfig) ([]task.Device, []task.Mount, error) {
	recalledDevices, recalledMounts, err := reservation.Recall(cfg.DeviceEnv)
	if err != nil {
		return nil, nil, err
	}
	var devices []task.Device
	for _, d := range cfg.Devices {
		devices = append(devices, deviceOf(d))
	}
	passed := devices
	for _, d := range recalledDevices {
		if d := deviceOf(d); !slices.ContainsFunc(passed, func(p task.Device) bool { return p.TaskPath == d.TaskPath }) {
			devices = append(devices, d)
		}
	}
	var mounts []task.Mount
	for _, m := range cfg.Mounts {
		mounts = append(mounts, mountOf(m))
	}
	passedMounts := mounts
	for _, m := range recalledMounts {
		if m := mountOf(m); !slices.ContainsFunc(passedMounts, func(p task.Mount) bool { return p.Target == m.Target }) {
			mounts = append(mounts, m)
		}
	}
	devices, mounts = unique(devices), unique(mounts)
	for i, d := range devices {
		for _, other := range devices[:i] {
			if d.TaskPath == other.TaskPath {
				return nil, nil, fmt.Errorf("devices %q and %q are both to be at %q in the task: ask for them in one device "+
					"block, with a count, or give one another path in the device plugin's config",
					other.HostPath, d.HostPath, d.TaskPath)
			}
		}
	}
	return devices, mounts, nil
}

func deviceOf(d *drivers.DeviceConfig) task.Device {
	return task.Device{HostPath: d.HostPath, TaskPath: cmp.Or(d.TaskPath, d.HostPath)}
}

func mountOf(m *drivers.MountConfig) task.Mount {
	return task.Mount{Source: m.HostPath, Target: cmp.Or(m.TaskPath, m.HostPath), ReadOnly: m.Readonly}
}

// unique drops duplicates: several devices may each come with the mount that all of
// them need.
func unique[T comparable](list []T) []T {
	var kept []T
	for _, v := range list {
		if !slices.Contains(kept, v) {
			kept = append(kept, v)
		}
	}
	return kept
}

// canMount reports whether a task can have mounts of its own. Capabilities, a user
// namespace or a sandbox may prevent it. So it is tried once, by a process that makes a
// mount namespace and then has nothing to execute (ENOENT).
var canMount = sync.OnceValue(func() bool {
	attr := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	_, err := syscall.ForkExec("", []string{""}, &syscall.ProcAttr{Sys: attr})
	return errors.Is(err, syscall.ENOENT)
})

// useHostPaths changes a command that can't have mounts of its own: an environment
// variable or argument that is exactly the path of a device in the task becomes the
// device's path on the host. It returns the changes, for the task's author.
func useHostPaths(cmd *task.Command) []string {
	var moved []string
	host := map[string]string{}
	move := func(path, hostPath string) {
		if path != hostPath {
			host[path] = hostPath
			moved = append(moved, path+" is "+hostPath)
		}
	}
	for i, d := range cmd.Devices {
		move(d.TaskPath, d.HostPath)
		cmd.Devices[i].TaskPath = d.HostPath
	}
	for _, m := range cmd.Mounts {
		move(m.Target, m.Source)
	}
	cmd.Mounts = nil
	for i, v := range cmd.Env {
		if name, value, _ := strings.Cut(v, "="); host[value] != "" {
			cmd.Env[i] = name + "=" + host[value]
		}
	}
	for i, v := range cmd.Args {
		if host[v] != "" {
			cmd.Args[i] = host[v]
		}
	}
	return moved
}
