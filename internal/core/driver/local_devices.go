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

// devices returns the devices and mounts that device plugins reserved for a task, and the task's volumes. It recalls
// reservations that Nomad no longer passes after a restart of the agent. Nomad does not distinguish a volume from a
// mount of a device plugin, so a mount counts as a volume unless a plugin of this collection has recorded the mount.
func devices(cfg *drivers.TaskConfig) ([]task.Device, []task.Mount, error) {
	recalledDevices, recalledMounts, err := reservation.Recall(cfg.DeviceEnv)
	if err != nil {
		return nil, nil, err
	}
	devices := merged(deviceOf, func(d task.Device) string { return d.TaskPath }, cfg.Devices, recalledDevices)
	for _, m := range cfg.Mounts {
		if m.Readonly && m.PropagationMode == structs.VolumeMountPropagationHostToTask {
			return nil, nil, fmt.Errorf("volume_mount { destination = %q propagation_mode = %q read_only = true } is not "+
				"supported: file systems that the host mounts in it later would be writable; remove read_only or propagation_mode",
				m.TaskPath, m.PropagationMode)
		}
		if m.PropagationMode == structs.VolumeMountPropagationBidirectional {
			return nil, nil, fmt.Errorf("volume_mount { destination = %q propagation_mode = %q } is not supported: mounts "+
				"that a task of this driver makes are not visible on the host; use %q, or remove propagation_mode",
				m.TaskPath, m.PropagationMode, structs.VolumeMountPropagationHostToTask)
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
				return nil, nil, fmt.Errorf("devices %q and %q have the same path %q in the task: request them in one device "+
					"block, with a count, or set another path for one of them in the device plugin's config",
					other.HostPath, d.HostPath, d.TaskPath)
			}
		}
	}
	return devices, mounts, nil
}

func deviceOf(d *drivers.DeviceConfig) task.Device {
	return task.Device{HostPath: d.HostPath, TaskPath: cmp.Or(d.TaskPath, d.HostPath)}
}

// mountOf converts a mount. A relative target is below the task's directory, as in Nomad's exec driver.
func mountOf(taskDir string, m *drivers.MountConfig) task.Mount {
	target := cmp.Or(m.TaskPath, m.HostPath)
	if !path.IsAbs(target) {
		target = taskDir + "/" + target
	}
	return task.Mount{Source: m.HostPath, Target: target, ReadOnly: m.Readonly,
		HostToTask: m.PropagationMode == structs.VolumeMountPropagationHostToTask}
}

// trusted reports whether programs with root's rights can trust the paths that the task sees. They can if the task has
// no volumes outside its own directory: the job's author chooses where a volume is mounted, and what it contains.
func trusted(c *task.Command) bool {
	return !slices.ContainsFunc(c.Mounts, func(m task.Mount) bool {
		rest, ok := strings.CutPrefix(path.Clean(m.Target), c.TaskDir+"/")
		return m.Volume && (!ok || rest == "")
	})
}

// merged returns the items that Nomad has passed, and those recalled items whose place in the task is still free. It
// drops duplicates, because several devices may each come with the same mount.
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

// canMount reports whether a task can have its own mounts. A lack of capabilities, a user namespace or a sandbox may
// prevent this. canMount tries once, with a process that creates a mount namespace. If that works, the process then
// fails with ENOENT, because it has no program to execute.
var canMount = sync.OnceValue(func() bool {
	attr := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	_, err := syscall.ForkExec("", []string{""}, &syscall.ProcAttr{Sys: attr})
	return errors.Is(err, syscall.ENOENT)
})

// useHostPaths makes a command use the paths on the host, if it can't have its own mounts. It replaces each environment
// variable or argument that is exactly the path of a device or mount in the task. It returns the changes, to be shown
// to the task's author.
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
	if cmd.Unveil != nil {
		for i, p := range cmd.Unveil.Paths {
			cmd.Unveil.Paths[i].Path = cmp.Or(host[p.Path], p.Path)
		}
	}
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
