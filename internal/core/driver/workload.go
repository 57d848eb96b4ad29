// Package driver is the one implementation of Nomad's task driver contract
// (plugins/drivers/driver.go, drivers.DriverPlugin). A plugin supplies a
// Workload: its name, its options, and how a task's configuration becomes a
// command. Lifecycle, recovery, limits, output, statistics, exec and events are
// here, the same for all.
package driver

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Workload is what distinguishes one driver from another. P is its plugin
// configuration, T that of a task; each may embed PluginOptions and TaskOptions
// to offer the options that every driver on this core has.
type Workload[P, T any] struct {
	// Name is the driver's, as jobs write it: driver = "exec-lite".
	Name string

	// Summary says in one sentence what the driver does.
	Summary string

	// Configure takes the plugin configuration, validated, when the agent starts.
	// It must have no effect outside of this process: Nomad also configures plugins
	// just to look at them. Optional.
	Configure func(P) error

	// Fingerprint adds attributes, each under driver.<Name>. An error makes the
	// driver unhealthy with these words. Optional.
	Fingerprint func(context.Context) (map[string]*pstructs.Attribute, error)

	// Command turns a task into the command to run. An error fails the task with
	// these words, unless it is a structs.RecoverableError.
	Command func(context.Context, Request[T]) (*task.Command, error)
}

// Request is one task to be started.
type Request[T any] struct {
	Config T                   // its configuration, validated
	Task   *drivers.TaskConfig // all that Nomad says about it

	base task.Command
}

// Run returns a command for a program with all that does not depend on the
// driver filled in: environment, directory, user, limits, devices.
func (r Request[T]) Run(program string, args ...string) *task.Command {
	cmd := r.base
	cmd.Path, cmd.Args = program, args
	return &cmd
}

// workload is a Workload without its type parameters.
type workload interface {
	about() (name, summary string)
	schemas() (plugin, task schema.Described)
	configure(msgpack []byte) (PluginOptions, error)
	fingerprint(context.Context) (map[string]*pstructs.Attribute, error)
	decode(*drivers.TaskConfig) (decodedTask, error)
}

// decodedTask is a task's configuration, half understood: its general options,
// and how to make the command from the general part of it.
type decodedTask struct {
	options TaskOptions
	command func(context.Context, task.Command) (*task.Command, error)
}

type typed[P, T any] struct {
	Workload[P, T]
	plugin *schema.Schema[P]
	task   *schema.Schema[T]
}

func (w *typed[P, T]) about() (string, string) { return w.Name, w.Summary }

func (w *typed[P, T]) schemas() (schema.Described, schema.Described) { return w.plugin, w.task }

func (w *typed[P, T]) configure(msgpack []byte) (PluginOptions, error) {
	config, err := w.plugin.Decode(msgpack)
	if err != nil {
		return PluginOptions{}, err
	}
	options := defaultPluginOptions()
	if o, ok := any(&config).(interface{ pluginOptions() *PluginOptions }); ok {
		options = *o.pluginOptions()
	}
	if w.Configure != nil {
		err = w.Configure(config)
	}
	return options, err
}

func (w *typed[P, T]) fingerprint(ctx context.Context) (map[string]*pstructs.Attribute, error) {
	if w.Fingerprint == nil {
		return nil, nil
	}
	return w.Fingerprint(ctx)
}

func (w *typed[P, T]) decode(cfg *drivers.TaskConfig) (decodedTask, error) {
	config, err := w.task.DecodeTask(cfg)
	if err != nil {
		return decodedTask{}, err
	}
	d := decodedTask{options: defaultTaskOptions()}
	if o, ok := any(&config).(interface{ taskOptions() *TaskOptions }); ok {
		d.options = *o.taskOptions()
	}
	d.command = func(ctx context.Context, base task.Command) (*task.Command, error) {
		cmd, err := w.Command(ctx, Request[T]{Config: config, Task: cfg, base: base})
		if err == nil && cmd.Path == "" {
			err = fmt.Errorf("command is empty: name a program, such as command = \"/bin/sleep\"")
		}
		return cmd, err
	}
	return d, nil
}
