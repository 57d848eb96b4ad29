// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/reservation"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// devices are what device plugins reserved for a task, and its volumes: what Nomad passes,
// and what it has forgotten since the agent was restarted. Nomad does not tell a volume from
// a mount of a device plugin. So a mount is a volume unless it is among what plugins of this
// collection have written down.
func devices(cfg *drivers.TaskConfig) ([]task.Device, []task.Mount, error) {
	recalledDevices, recalledMounts, err := reservation.Recall(cfg.DeviceEnv)
	if err != nil {
		return nil, nil, err
	}
	devices := merged(deviceOf, func(d task.Device) string { return d.TaskPath }, cfg.Devices, recalledDevices)
	for _, m := range cfg.Mounts {
		if m.Readonly && m.PropagationMode == structs.VolumeMountPropagationHostToTask {
			return nil, nil, fmt.Errorf("volume_mount { destination = %q propagation_mode = %q read_only = true } is not "+
				"possible: what the host mounts in it later could be written to; leave one of the two out",
				m.TaskPath, m.PropagationMode)
		}
		if m.PropagationMode == structs.VolumeMountPropagationBidirectional {
			return nil, nil, fmt.Errorf("volume_mount { destination = %q propagation_mode = %q } is not possible: what a task "+
				"of this driver mounts is never seen on the host; use %q, or leave it out", m.TaskPath, m.PropagationMode,
				structs.VolumeMountPropagationHostToTask)
		}
	}
	asMount := func(m *drivers.MountConfig) task.Mount { return mountOf(cfg.TaskDir().Dir, m) }
	mounts := merged(asMount, func(m task.Mount) string { return m.Target }, cfg.Mounts, recalledMounts)
	var plugins []task.Mount
	for _, m := range recalledMounts {
		plugins = append(plugins, asMount(m))
	}
	for i, m := range mounts {
		mounts[i].Volume = !slices.Contains(plugins, m)
	}
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

// mountOf takes a relative target as one in the task's directory, as Nomad's exec driver does.
func mountOf(taskDir string, m *drivers.MountConfig) task.Mount {
	target := cmp.Or(m.TaskPath, m.HostPath)
	if !path.IsAbs(target) {
		target = taskDir + "/" + target
	}
	return task.Mount{Source: m.HostPath, Target: target, ReadOnly: m.Readonly,
		HostToTask: m.PropagationMode == structs.VolumeMountPropagationHostToTask}
}

// trusted reports whether programs of root find nothing of the job's choice at a path that
// they may trust: volumes, which a job's author fills and names places for, are in the task's
// own directory alone.
func trusted(c *task.Command) bool {
	return !slices.ContainsFunc(c.Mounts, func(m task.Mount) bool {
		rest, ok := strings.CutPrefix(path.Clean(m.Target), c.TaskDir+"/")
		return m.Volume && (!ok || rest == "")
	})
}

// merged is what Nomad passed, and what was recalled for places in the task where nothing
// of that is. Duplicates are dropped: several devices may each come with the mount that
// all of them need.
func merged[N any, T comparable](convert func(N) T, place func(T) string, passed, recalled []N) (all []T) {
	taken := map[string]bool{}
	for _, n := range passed {
		v := convert(n)
		taken[place(v)] = true
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	for _, n := range recalled {
		if v := convert(n); !taken[place(v)] && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
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
