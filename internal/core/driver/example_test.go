// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver_test

import (
	"context"
	"os/exec"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
)

type Config struct { // plugin "nomad-driver-wasm" { config { ... } }
	Runtime string `codec:"runtime" default:"wasmtime" doc:"The program that runs modules."`
	driver.PluginOptions
}

type TaskConfig struct { // config { module = "local/app.wasm" }
	Module string   `codec:"module" required:"true" doc:"What to run."`
	Args   []string `codec:"args" doc:"Its arguments."`
	driver.TaskOptions
}

type wasm struct{ runtime string }

func (w *wasm) Command(_ context.Context, r driver.Request[TaskConfig]) (*task.Command, error) {
	return r.Run(w.runtime, append([]string{r.Config.Module}, r.Config.Args...)...), nil
}

func (w *wasm) Fingerprint(context.Context) (map[string]*structs.Attribute, error) {
	path, err := exec.LookPath(w.runtime) // an error makes the driver unhealthy
	return map[string]*structs.Attribute{"runtime": structs.NewStringAttribute(path)}, err
}

func (w *wasm) Capabilities(c *drivers.Capabilities) { c.Exec = false } // a module has no shell

var wasmPlugin = driver.Plugin[Config, TaskConfig]{
	Name: "wasm", Summary: "runs WebAssembly modules",
	New: func(c Config, _ hclog.Logger) (driver.Instance[TaskConfig], error) { return &wasm{c.Runtime}, nil },
}

func Example() { driver.Main(wasmPlugin) }
