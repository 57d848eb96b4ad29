// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-driver-floor is a driver for benchmarks that starts no process and collects no output. A task of this
// driver costs only what Nomad itself uses.
package main

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// taskConfig has the same options as exec-lite's, so jobs differ only in the driver.
type taskConfig struct {
	Command string   `codec:"command" doc:"Is not run."`
	Args    []string `codec:"args" doc:"Are not used."`
}

type floor struct{}

func main() {
	driver.Main(driver.Plugin[struct{}, taskConfig]{
		Name: "floor", Summary: "starts nothing",
		New: func(struct{}, hclog.Logger) (driver.Instance[taskConfig], error) { return floor{}, nil },
	})
}

func (floor) Command(_ context.Context, r driver.Request[taskConfig]) (*task.Command, error) {
	return r.Run(r.Config.Command), nil
}

func (floor) Engine() driver.Engine { return floor{} }

func (floor) Capabilities(c *drivers.Capabilities) { c.DisableLogCollection = true }

func (floor) Start(context.Context, *driver.Start) (driver.Task, error) { return &idle{}, nil }

func (floor) Recover(context.Context, *drivers.TaskConfig, []byte, driver.Event) (driver.Task, error) {
	return &idle{}, nil
}

func (floor) Destroy(context.Context, string) error { return nil }

// idle runs until it gets a signal.
type idle struct{ driver.Ending }

func (i *idle) Signal(context.Context, string) error {
	i.End(&task.Exit{})
	return nil
}

func (i *idle) Stop(ctx context.Context, _ time.Duration, signal string) error {
	return i.Signal(ctx, signal)
}
