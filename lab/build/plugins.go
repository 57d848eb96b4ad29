// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package build

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Plugin describes a plugin: a module in plugins/.
type Plugin struct {
	Name   string // the name of its folder: "exec-lite"
	Dir    string
	Binary string // the name of its program: "nomad-driver-exec-lite" or "nomad-device-usb"
	Device bool   // whether it is a device plugin; if not, it is a task driver
	Libusb bool   // whether it is linked with libusb if possible; if not, it is a static program

	HostVolume string // the plugin id if the program is also a host volume plugin
}

// declared describes plugins, by folder. A task driver that is a static program needs no entry.
var declared = map[string]Plugin{
	"dataset": {Device: true, HostVolume: "dataset"},
	"usb":     {Device: true, Libusb: true},
}

// Plugins returns a checkout's plugins, sorted by name. Each folder in plugins/ with a go.mod is a plugin.
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

// Select returns the plugins with the given names, or all plugins if no name is given. The name of the folder or of the
// program selects a plugin.
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
