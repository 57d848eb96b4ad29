// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/lib/numalib"
	"github.com/hashicorp/nomad/drivers/rawexec"
	"github.com/hashicorp/nomad/helper/pluginutils/loader"
	nomadconfig "github.com/hashicorp/nomad/nomad/structs/config"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// driver is a task driver, loaded as Nomad's client loads it.
type driver struct {
	drivers.DriverPlugin
	close func() // ends the plugin
}

// openRaw opens Nomad's raw_exec in this process, as the agent does. raw_exec executes this program again for each
// task: the init function of Nomad's package drivers/shared/executor then makes the new process an executor.
func openRaw() (*driver, error) {
	return open(rawexec.PluginID.Name, &loader.PluginLoaderConfig{
		InternalPlugins: map[loader.PluginID]*loader.InternalPluginConfig{
			rawexec.PluginID: {Config: map[string]any{"enabled": true}, Factory: rawexec.PluginConfig.Factory},
		},
	})
}

// openPlugin starts a plugin binary.
func openPlugin(binary string, config map[string]any) (*driver, error) {
	dir, file := filepath.Split(binary)
	return open(strings.TrimPrefix(file, "nomad-driver-"), &loader.PluginLoaderConfig{
		PluginDir: dir,
		Configs:   []*nomadconfig.PluginConfig{{Name: file, Config: config}},
	})
}

// open starts and configures a driver with Nomad's plugin loader. The caller closes it.
func open(name string, config *loader.PluginLoaderConfig) (*driver, error) {
	config.Logger = hclog.NewNullLogger()
	config.SupportedVersions = loader.AgentSupportedApiVersions
	plugins, err := loader.NewPluginLoader(config)
	if err != nil {
		return nil, err
	}
	agent := &base.ClientDriverConfig{
		ClientMinPort: 14000, ClientMaxPort: 14512, // Nomad's defaults
		Topology: numalib.Scan(numalib.PlatformScanners(false)),
	}
	instance, err := plugins.Dispense(name, base.PluginTypeDriver, &base.AgentConfig{Driver: agent}, config.Logger)
	if err != nil {
		return nil, fmt.Errorf("failed to start driver %s: %w", name, err)
	}
	return &driver{DriverPlugin: instance.Plugin().(drivers.DriverPlugin), close: instance.Kill}, nil
}
