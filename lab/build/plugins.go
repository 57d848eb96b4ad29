// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package build

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Plugin is one module of plugins/.
type Plugin struct {
	Name   string // of the folder: "exec-lite"
	Dir    string
	Binary string // "nomad-driver-exec-lite" or "nomad-device-usb"
	Device bool   // a device plugin; otherwise a task driver
	Libusb bool   // linked with libusb if possible; otherwise a static program

	HostVolume string // the id of the binary as a host volume plugin; empty if it is not one
}

// declared lists the plugins that are not static task drivers: their folders alone do not show what they are.
var declared = map[string]Plugin{
	"dataset": {Device: true, HostVolume: "dataset"},
	"usb":     {Device: true, Libusb: true},
}

// Plugins lists the plugins of a checkout in order of name: each folder of plugins/ that is a module.
func Plugins(root string) ([]Plugin, error) {
	modules, err := filepath.Glob(filepath.Join(root, "plugins", "*", "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("failed to list the plugins: %w", err)
	}
	var plugins []Plugin
	for _, module := range modules {
		dir := filepath.Dir(module)
		p := declared[filepath.Base(dir)]
		p.Name, p.Dir = filepath.Base(dir), dir
		kind := "driver"
		if p.Device {
			kind = "device"
		}
		p.Binary = "nomad-" + kind + "-" + p.Name
		plugins = append(plugins, p)
	}
	return plugins, nil
}

// Select returns the plugins with these names, or all if there are no names. Each name may be a folder's or a binary's
// name.
func Select(plugins []Plugin, names ...string) ([]Plugin, error) {
	if len(names) == 0 {
		return plugins, nil
	}
	var out []Plugin
	for _, n := range names {
		i := slices.IndexFunc(plugins, func(p Plugin) bool { return p.Name == n || p.Binary == n })
		if i < 0 {
			var have []string
			for _, p := range plugins {
				have = append(have, p.Name)
			}
			return nil, fmt.Errorf("plugin %q does not exist; existing plugins: %s", n, strings.Join(have, ", "))
		}
		out = append(out, plugins[i])
	}
	return out, nil
}
