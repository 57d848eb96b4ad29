// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command nomad-driver-exec-lite runs processes under Nomad without a helper
// process for each.
package main

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Config is the agent's plugin block.
type Config struct {
	driver.PluginOptions
}

// TaskConfig is the config block of a task.
type TaskConfig struct {
	Command string   `codec:"command" required:"true" doc:"The program: a path, or a name in the task's local directory, the task directory, or PATH."`
	Args    []string `codec:"args" doc:"Its arguments."`
	driver.TaskOptions
}

// execLite runs the program that a job names.
type execLite struct{}

// Command implements driver.Instance.
func (execLite) Command(_ context.Context, r driver.Request[TaskConfig]) (*task.Command, error) {
	return r.Run(r.Config.Command, r.Config.Args...), nil
}

func main() {
	driver.Main(driver.Plugin[Config, TaskConfig]{
		Name:    "exec-lite",
		Summary: "runs processes without a helper process for each",
		New:     func(Config, hclog.Logger) (driver.Instance[TaskConfig], error) { return execLite{}, nil },
	})
}
