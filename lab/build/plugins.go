// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package build

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Plugin is one module of plugins/.
type Plugin struct {
	Name   string // of the folder: "exec-lite"
	Dir    string
	Binary string // "nomad-driver-exec-lite" or "nomad-device-usb"
	Device bool   // serves devices; otherwise it is a task driver
	Libusb bool   // is linked with libusb where possible; otherwise it is a static program
	Shim   bool   // embeds a static program, which it puts on other hosts

	HostVolume string // the id of the host volume plugin that the binary is, too; empty if it is none
}

// declared are the plugins that are not static task drivers: the folder alone does not tell.
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
		_, err := os.Stat(filepath.Join(dir, shimPackage))
		p.Shim = err == nil
		plugins = append(plugins, p)
	}
	return plugins, nil
}

// Select returns the plugins with these names, or all if there are no names.
// A name may be the folder's or the binary's.
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
			return nil, fmt.Errorf("there is no plugin %q; there are: %s", n, strings.Join(have, ", "))
		}
		out = append(out, plugins[i])
	}
	return out, nil
}
