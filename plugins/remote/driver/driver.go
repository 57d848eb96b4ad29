// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is the remote driver on the Nomad node: its options, and the engine whose tasks run on hosts
// that are reached by SSH. On such a host the same program runs them (package shim).
package driver

import (
	"context"

	"github.com/hashicorp/go-hclog"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// Plugin is the driver.
func Plugin() core.Plugin[Config, TaskConfig] {
	return core.Plugin[Config, TaskConfig]{
		Name:    shim.Name,
		Summary: "runs tasks on hosts that are reached by SSH",
		New: func(c Config, logger hclog.Logger) (core.Instance[TaskConfig], error) {
			return &instance{engine: newEngine(c, logger)}, nil
		},
		Roles: []func() bool{shim.Role(onHost)},
	}
}

// instance is the driver with its configuration.
type instance struct {
	process
	engine *engine
}

var _ core.EngineProvider = (*instance)(nil)

// Engine is part of core.EngineProvider.
func (i *instance) Engine() core.Engine { return i.engine }

// onHost is the driver on a host, where tasks are processes.
var onHost = core.Plugin[core.PluginOptions, TaskConfig]{
	Name:    shim.Name,
	Summary: "runs tasks on this host for a Nomad node",
	New: func(core.PluginOptions, hclog.Logger) (core.Instance[TaskConfig], error) {
		return process{}, nil
	},
}

// process runs what a job names.
type process struct{}

// Command is the program and the arguments of the job.
func (process) Command(_ context.Context, r core.Request[TaskConfig]) (*task.Command, error) {
	return r.Run(r.Config.Command, r.Config.Args...), nil
}
