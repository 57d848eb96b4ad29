// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package driver implements Nomad's task driver contract (plugins/drivers/driver.go,
// drivers.DriverPlugin) for every driver. A driver plugin supplies a Plugin: its name, its options,
// and how a task's configuration becomes a command. This package supplies the rest: lifecycle,
// recovery, limits, output, statistics, exec and events.
package driver

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Plugin defines a driver. C is the configuration of the plugin, T that of a task. C may embed
// PluginOptions and T may embed TaskOptions to offer the options that every driver on this core
// has.
type Plugin[C, T any] struct {
	// Name is the driver's name, as in a job: driver = "exec-lite".
	Name string

	// Summary describes the driver in one sentence.
	Summary string

	// New creates an instance from a validated configuration. It must have no effect outside this
	// process, because Nomad also configures plugins only to inspect them. The logger is the driver's.
	New func(config C, logger hclog.Logger) (Instance[T], error)

	// Commands are the binary's subcommands for operators. Optional.
	Commands []plugin.Command

	// Roles are other programs in the same binary, see plugin.Plugin. Optional.
	Roles []func() bool
}

// Instance is a driver with its configuration. It may also be a Fingerprinter, ExitReporter,
// Capable, UserDefaulter and EngineProvider. All methods may be called concurrently.
type Instance[T any] interface {
	// Command returns the command that runs a task. It may take minutes, for example for a download,
	// and should then report its progress with Request.Event. ctx ends when the agent no longer waits
	// for the start. An error fails the task with the error's text; after a *structs.RecoverableError,
	// the job's restart policy decides.
	Command(ctx context.Context, r Request[T]) (*task.Command, error)
}

// Fingerprinter is an Instance that reports attributes of the node.
type Fingerprinter interface {
	// Fingerprint returns attributes, with names relative to driver.<Name>. An error makes the driver
	// unhealthy, or undetected if the error is an Undetected. The error's text is the health description.
	Fingerprint(ctx context.Context) (map[string]*pstructs.Attribute, error)
}

// ExitReporter is an Instance that explains exits.
type ExitReporter interface {
	// ReportExit explains the exit of a task, even if an earlier plugin process started the task. It
	// returns a message for the task's events, or an empty string. While Nomad stops the task, the
	// message is part of the exit message. The exit is delivered when ReportExit has returned, or
	// after 10 s.
	ReportExit(e Ended) string
}

// Capable is an Instance or Engine that changes the capabilities of the driver.
type Capable interface {
	// Capabilities changes the capabilities that the driver reports to Nomad. If Exec is false, the
	// core refuses commands in tasks.
	Capabilities(c *drivers.Capabilities)
}

// UserDefaulter is an Instance whose tasks have a default user other than the agent's.
type UserDefaulter interface {
	// DefaultUser returns the user of tasks whose job sets none, in the format of a job. It is used only
	// if the agent is root. An empty string stands for the agent's own user.
	DefaultUser() string
}

// Request describes a task to start.
type Request[T any] struct {
	Config T                   // the task's configuration, validated
	Task   *drivers.TaskConfig // as passed by Nomad

	*startup
}

// Run returns a command for a program. All fields that do not depend on the driver are set:
// environment, directory, user, limits and devices.
func (r Request[T]) Run(program string, args ...string) *task.Command {
	cmd := r.base
	cmd.Path, cmd.Args = program, args
	return &cmd
}

// User returns the user that the task will run as, or nil for the agent's own.
func (r Request[T]) User() *task.User { return r.base.User }

// StateDir returns a directory that exists from the creation of the task's process until DestroyTask has removed
// everything that belongs to the task, even if the plugin or the supervisor is killed in between. A driver can store
// the directory's path with a resource that the task acquires: the resource is in use as long as the directory exists.
// The directory belongs to the supervisor: put nothing there.
func (r Request[T]) StateDir() string { return r.stateDir }

// Event emits a task event immediately. Nomad keeps the last ten events of a task, including those of Nomad itself
// (structs.TaskState). Event may be called from any goroutine until Command returns.
func (r Request[T]) Event(format string, args ...any) { r.event(fmt.Sprintf(format, args...)) }

// Finally registers f to be called at the end of the start, successful or not. Functions are called
// in reverse order of registration.
func (r Request[T]) Finally(f func()) { r.finally = append(r.finally, f) }

// startup is the part of a Request that does not depend on the type of the configuration.
type startup struct {
	base     task.Command
	stateDir string
	event    func(message string)
	finally  []func()
}

func (s *startup) runFinally() {
	for _, f := range slices.Backward(s.finally) {
		f()
	}
}

// Run is one run of a task.
type Run struct {
	ID         string                 // Nomad's task id, new for each start
	Command    *task.Command          // nil if the engine does not know it
	Attributes map[string]string      // shown to users, such as the pid
	Network    *drivers.DriverNetwork // where the task can be reached, nil for the host's own addresses

	// AllocDir and Task locate the task's files: <AllocDir>/<Task> is its directory, and
	// <AllocDir>/alloc/logs/<Task>.stderr.N its output, with the highest N for the newest. A task may
	// write to both.
	AllocDir, Task string

	// StderrFrom is where the stderr of this run begins, in files to which earlier runs may have written.
	StderrFrom task.LogPlace
}

// Ended is a run that has ended. Its files contain all of its output, except with log_collection = "nomad": then
// Nomad's logmon may not have written the end of the output yet.
type Ended struct {
	Run
	Exit    *task.Exit
	Stopped bool // Nomad has stopped it
}

// erased is a Plugin without its type parameters.
type erased struct {
	name         string
	config, task schema.Described
	configure    func(msgpack []byte, logger hclog.Logger) (PluginOptions, *instance, error)
}

// instance is an Instance without its type parameter.
type instance struct {
	any    // the Instance itself, for its optional interfaces; nil before SetConfig
	start  func(*drivers.TaskConfig, *startup) (*Start, error)
	engine Engine
}

func erase[C, T any](p Plugin[C, T]) *erased {
	config, taskConfig := schema.Of[C](), schema.Of[T]()
	configure := func(msgpack []byte, logger hclog.Logger) (PluginOptions, *instance, error) {
		c, err := config.Decode(msgpack)
		if err != nil {
			return PluginOptions{}, nil, err
		}
		options := defaultPluginOptions()
		if o, ok := any(&c).(interface{ pluginOptions() *PluginOptions }); ok {
			options = *o.pluginOptions()
		}
		i, err := p.New(c, logger)
		if err != nil {
			return PluginOptions{}, nil, err
		}
		start := func(cfg *drivers.TaskConfig, s *startup) (*Start, error) { return newStart(taskConfig, i, cfg, s) }
		return options, &instance{any: i, start: start}, nil
	}
	return &erased{name: p.Name, config: config, task: taskConfig, configure: configure}
}

func newStart[T any](s *schema.Schema[T], i Instance[T], cfg *drivers.TaskConfig, starting *startup) (*Start, error) {
	config, err := s.DecodeTask(cfg)
	if err != nil {
		return nil, err
	}
	command := func(ctx context.Context, base task.Command, stateDir string) (*task.Command, error) {
		starting.base, starting.stateDir = base, stateDir
		return i.Command(ctx, Request[T]{Config: config, Task: cfg, startup: starting})
	}
	return &Start{Task: cfg, Config: &config, Command: command}, nil
}
