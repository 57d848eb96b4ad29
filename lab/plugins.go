// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
)

// Build builds every plugin into bin/, and prints their paths.
func Build(ctx context.Context) error {
	l, err := New()
	if err != nil {
		return err
	}
	paths, err := l.build(ctx, agent.Host)
	for _, p := range paths {
		l.say("%s", p)
	}
	return err
}

// build builds the named plugins, or all if none is named, for an agent with this runtime, and returns their paths.
func (l *Lab) build(ctx context.Context, r agent.Runtime, which ...string) ([]string, error) {
	b := build.Builder{Root: l.root}
	if r == agent.Container {
		b = b.ForContainer()
	}
	end := l.step(ctx, "Building the plugins")
	paths, err := b.All(ctx, which...)
	note := ""
	if slices.ContainsFunc(paths, func(p string) bool { return filepath.Base(p) == usbPlugin }) {
		if why := b.Libusb(ctx); why != nil {
			note = " (usb without libusb: " + why.Error() + ")"
		}
	}
	end(err, "%s%s", names(paths), note)
	return paths, err
}

func names(paths []string) string {
	var n []string
	for _, p := range paths {
		n = append(n, filepath.Base(p))
	}
	slices.Sort(n)
	return joined(n)
}

// plugin returns a plugin with the configuration that the demo has set, or otherwise with the lab's.
func (l *Lab) plugin(binary string) agent.Plugin {
	p := agent.Plugin{Binary: binary}
	name := strings.TrimPrefix(strings.TrimPrefix(p.Name(), agent.DriverPrefix), agent.DevicePrefix)
	switch {
	case l.only[name] != "":
		p.Config = l.only[name]
	case p.Name() == usbPlugin:
		p.Config = usbConfig
	case p.Name() == datasetPlugin:
		p.Config, p.HostVolume, p.HostVolumeFile = datasetConfig, datasetVolumes, datasetNoClasses
	case name == "python": // cache in the lab's directory, which lab:down removes
		p.Config = "state_dir = \"${state_dir}\"\ncache_dir = \"${state_dir}/environments\""
	case p.Name() == remotePlugin: // no endpoint here: startNode configures one on the other nodes
	case p.Driver() != "":
		p.Config = `state_dir = "${state_dir}"` // each lab has its own
	}
	return p
}
