package main

import (
	"context"
	"errors"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// pythonDriver is what outlives a single task.
type pythonDriver struct{}

func newDriver() *pythonDriver { return &pythonDriver{} }

func (d *pythonDriver) workload() driver.Workload[Config, TaskConfig] {
	return driver.Workload[Config, TaskConfig]{
		Name:    "python",
		Summary: "runs Python programs, each with the interpreter and the packages it requires",
		Command: func(context.Context, driver.Request[TaskConfig]) (*task.Command, error) {
			return nil, errors.New("not there yet")
		},
	}
}
