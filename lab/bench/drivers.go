// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/nomad/client/lib/numalib"
	"github.com/hashicorp/nomad/drivers/rawexec"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// driver is a driver as Nomad's client holds one.
type driver struct {
	drivers.DriverPlugin
	spec   hcldec.Spec // of a task's config block
	logmon bool        // it expects FIFOs to write the task's output to
}

// openRaw returns Nomad's own driver, in this process as in the agent's. For
// each task it starts this program again, which is the executor then (see
// the init function of nomad's drivers/shared/executor).
func openRaw(ctx context.Context) (*driver, error) {
	d := rawexec.NewRawExecDriver(ctx, hclog.NewNullLogger())
	it, err := configure(ctx, d, map[string]any{"enabled": true}, nil)
	if err != nil {
		return nil, err
	}
	it.logmon = true
	return it, nil
}

// openPlugin starts a plugin binary as Nomad does. hear gets the events of tasks, it may
// be nil. The plugin ends with close.
func openPlugin(ctx context.Context, binary string, config map[string]any, hear func(*drivers.TaskEvent)) (_ *driver,
	close func(), err error) {
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]goplugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDriver: drivers.NewDriverPlugin(nil, hclog.NewNullLogger()),
		},
		Cmd:              exec.Command(binary),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
	})
	defer func() {
		if err != nil {
			client.Kill()
		}
	}()
	rpc, err := client.Client()
	if err != nil {
		return nil, nil, fmt.Errorf("failed to start plugin: %w", err)
	}
	it, err := rpc.Dispense(base.PluginTypeDriver)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to start plugin: %w", err)
	}
	d, err := configure(ctx, it.(drivers.DriverPlugin), config, hear)
	return d, client.Kill, err
}

func configure(ctx context.Context, p drivers.DriverPlugin, config map[string]any,
	hear func(*drivers.TaskEvent)) (*driver, error) {
	schema, err := p.ConfigSchema()
	if err != nil {
		return nil, err
	}
	spec, err := convert(schema)
	if err != nil {
		return nil, err
	}
	val, err := parse(config, spec)
	if err != nil {
		return nil, err
	}
	packed, err := msgpack.Marshal(val, val.Type())
	if err != nil {
		return nil, err
	}
	err = p.SetConfig(&base.Config{
		ApiVersion:   drivers.ApiVersion010,
		PluginConfig: packed,
		AgentConfig: &base.AgentConfig{Driver: &base.ClientDriverConfig{
			ClientMinPort: 14000, ClientMaxPort: 14512, // Nomad's defaults
			Topology: numalib.Scan(numalib.PlatformScanners(false)),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("failed to configure driver: %w", err)
	}
	events, err := p.TaskEvents(ctx)
	if err != nil {
		return nil, err
	}
	go func() { // ends with ctx
		for e := range events {
			if hear != nil {
				hear(e)
			}
		}
	}()
	taskSchema, err := p.TaskConfigSchema()
	if err != nil {
		return nil, err
	}
	spec, err = convert(taskSchema)
	return &driver{DriverPlugin: p, spec: spec}, err
}

func convert(s *hclspec.Spec) (hcldec.Spec, error) {
	spec, diag := hclspecutils.Convert(s)
	if diag.HasErrors() {
		return nil, diag
	}
	return spec, nil
}

func parse(config map[string]any, spec hcldec.Spec) (cty.Value, error) {
	val, diag, errs := hclutils.ParseHclInterface(config, spec, nil)
	if diag.HasErrors() {
		return val, errors.Join(errs...)
	}
	return val, nil
}
