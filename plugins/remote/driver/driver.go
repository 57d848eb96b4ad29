// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is the remote driver: its options, its endpoints, and what a task's
// configuration becomes on one.
package driver

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Name is the driver's, as jobs write it.
const Name = "remote"

// Plugin is the driver.
func Plugin() core.Plugin[Config, TaskConfig] {
	return core.Plugin[Config, TaskConfig]{
		Name:    Name,
		Summary: "runs tasks on SSH hosts and in container engines, where they survive their Nomad node",
		New: func(c Config, logger hclog.Logger) (core.Instance[TaskConfig], error) {
			return &instance{node: newNode(c, logger)}, nil
		},
	}
}

// instance is the driver with its configuration.
type instance struct{ node *node }

var _ core.EngineProvider = (*instance)(nil)

// Engine is part of core.EngineProvider.
func (i *instance) Engine() core.Engine { return i.node }

// Command is not called: the engine is not the local one.
func (i *instance) Command(context.Context, core.Request[TaskConfig]) (*task.Command, error) {
	return nil, errors.New("the remote driver has no command of this host")
}
