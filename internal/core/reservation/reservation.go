// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package reservation saves the devices and mounts of a device plugin's reservation in an environment variable of the
// task, and restores them. Nomad asks for a reservation once for each task of an allocation. When the agent restarts,
// it still has the reservation's environment variables, but it has lost the devices and mounts
// (client/allocrunner/taskrunner, device_hook.go and task_runner_hooks.go; hashicorp/nomad#9473).
package reservation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// Prefix is the start of each variable's name. A hash of the value follows, so that the reservations of one task have
// different names.
const Prefix = "OUTRIDER_RESERVATION_"

type remembered struct {
	Devices []rememberedDevice `json:"devices,omitempty"`
	Mounts  []rememberedMount  `json:"mounts,omitempty"`
}

type rememberedDevice struct {
	Host        string `json:"host"`
	Task        string `json:"task"`
	Permissions string `json:"permissions"`
}

type rememberedMount struct {
	Host     string `json:"host"`
	Task     string `json:"task"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Remember adds a variable to r.Envs from which Recall restores the devices and mounts of r. If r has neither, Remember
// adds nothing. If Recall would refuse a value, Remember returns an error and adds nothing.
func Remember(r *device.ContainerReservation) error {
	var m remembered
	for _, d := range r.Devices {
		m.Devices = append(m.Devices, rememberedDevice{d.HostPath, d.TaskPath, d.CgroupPerms})
	}
	for _, b := range r.Mounts {
		m.Mounts = append(m.Mounts, rememberedMount{b.HostPath, b.TaskPath, b.ReadOnly})
	}
	if m.Devices == nil && m.Mounts == nil {
		return nil
	}
	if err := m.check(); err != nil {
		return err
	}
	value, err := json.Marshal(m)
	if err != nil {
		return err
	}
	// escaped, because Nomad interpolates ${...} in the value (client/taskenv/env.go, buildEnv)
	text := strings.ReplaceAll(string(value), "$", `\u0024`)
	sum := sha256.Sum256([]byte(text))
	envs := maps.Clone(r.Envs) // the plugin may use the same map for several reservations
	if envs == nil {
		envs = map[string]string{}
	}
	envs[Prefix+hex.EncodeToString(sum[:4])] = text
	r.Envs = envs
	return nil
}

// Recall restores the devices and mounts of every reservation in an environment, in a fixed order.
//
// Pass DeviceEnv of drivers.TaskConfig, never Env: a job's author can set variables in Env, and could make the driver
// mount any directory of the host. DeviceEnv contains only variables from device plugins, even after a restart of the
// agent. Its paths are as trustworthy as those in the Devices and Mounts of a TaskConfig. Recall returns an error for
// values that Remember refuses: a path that is not absolute or has "..", or permissions that no device cgroup has.
func Recall(deviceEnv map[string]string) ([]*drivers.DeviceConfig, []*drivers.MountConfig, error) {
	var devices []*drivers.DeviceConfig
	var mounts []*drivers.MountConfig
	for _, name := range slices.Sorted(maps.Keys(deviceEnv)) {
		if !strings.HasPrefix(name, Prefix) {
			continue
		}
		var m remembered
		if err := json.Unmarshal([]byte(deviceEnv[name]), &m); err != nil {
			return nil, nil, fmt.Errorf("environment variable %s is not a valid reservation: %w", name, err)
		}
		if err := m.check(); err != nil {
			return nil, nil, fmt.Errorf("environment variable %s: %w", name, err)
		}
		for _, d := range m.Devices {
			devices = append(devices, &drivers.DeviceConfig{HostPath: d.Host, TaskPath: d.Task, Permissions: d.Permissions})
		}
		for _, b := range m.Mounts {
			mounts = append(mounts, &drivers.MountConfig{HostPath: b.Host, TaskPath: b.Task, Readonly: b.ReadOnly})
		}
	}
	return devices, mounts, nil
}

func (m remembered) check() error {
	for _, d := range m.Devices {
		if err := checkPaths("device", d.Host, d.Task); err != nil {
			return err
		}
		if strings.Trim(d.Permissions, "rwm") != "" || d.Permissions == "" {
			return fmt.Errorf("device %s has invalid permissions %q: use only the letters r, w and m", d.Host, d.Permissions)
		}
	}
	for _, b := range m.Mounts {
		if err := checkPaths("mount", b.Host, b.Task); err != nil {
			return err
		}
	}
	return nil
}

func checkPaths(what, host, task string) error {
	for _, p := range []struct{ where, path string }{{"host", host}, {"task", task}} {
		if !filepath.IsAbs(p.path) || slices.Contains(strings.Split(p.path, "/"), "..") || strings.ContainsRune(p.path, 0) {
			return fmt.Errorf("%s path %q of a %s is not allowed: begin it with /, and do not use \"..\"", p.where, p.path, what)
		}
	}
	return nil
}
