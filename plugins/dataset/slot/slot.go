// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package slot is the plugin's device face: scratch that a task gets empty, and that is
// given back when its holder has gone.
package slot

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"
	nomad "github.com/hashicorp/nomad/plugins/device"

	"github.com/outrider-dev/outrider/internal/core/device"
)

type instance struct{ Config }

// New is that of device.Plugin.
func New(c Config, _ hclog.Logger) (device.Instance, error) { return &instance{c}, nil }

// List is part of device.Instance.
func (i *instance) List(context.Context) ([]device.Group, error) { return nil, nil }

// Reserve is part of device.Instance.
func (i *instance) Reserve(context.Context, []string) (*nomad.ContainerReservation, error) {
	return nil, errors.New("there are no slots yet")
}
