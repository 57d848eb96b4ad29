// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is the one implementation of Nomad's task driver contract
// (plugins/drivers/driver.go, drivers.DriverPlugin). A driver plugin supplies a
// Plugin: its name, its options, and how a task's configuration becomes a
// command. Lifecycle, recovery, limits, output, statistics, exec and events are
// here, the same for all drivers.
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

// Plugin is what distinguishes one driver from another. C is the configuration of
// the plugin, T that of a task; each may embed PluginOptions and TaskOptions to
// offer the options that every driver on this core has.
type Plugin[C, T any] struct {
	// Name is the driver's, as jobs write it: driver = "exec-lite".
	Name string

	// Summary describes in one sentence what the driver does.
	Summary string

	// New makes an instance from a validated configuration. It must have no effect
	// outside of this process: Nomad also configures plugins just to look at them.
	// The logger is the driver's.
	New func(config C, logger hclog.Logger) (Instance[T], error)

	// Commands are for a person.
	Commands []plugin.Command

	// Roles are other programs in the same binary, see plugin.Plugin. Optional.
	Roles []func() bool
}

// Instance is a driver with its configuration. Besides Command it may have the
// methods of Fingerprinter, ExitReporter, Capable, UserDefaulter and EngineProvider.
// All are called from several goroutines.
type Instance[T any] interface {
	// Command turns a task into the command to run. It may take minutes, such as for
	// a download, and then reports its progress with Request.Event. The context ends
	// when the agent does not wait for the start any more. An error fails the task,
	// and is its message; a *structs.RecoverableError leaves it to the restart policy.
	Command(ctx context.Context, r Request[T]) (*task.Command, error)
}

// Fingerprinter is an Instance with attributes of the node.
type Fingerprinter interface {
	// Fingerprint returns attributes, each by its name below driver.<Name>. An error
	// makes the driver unhealthy with this message, or undetected if it is an Undetected.
	Fingerprint(ctx context.Context) (map[string]*pstructs.Attribute, error)
}

// ExitReporter is an Instance that explains exits.
type ExitReporter interface {
	// ReportExit looks at a task that has ended, also at one that an earlier plugin
	// process started, and returns a sentence for the task's events, or an empty
	// string. While Nomad stops the task it is part of the exit
	// message. The exit is delivered when it has returned, or after 10 s.
	ReportExit(e Ended) string
}

// Capable is an Instance that changes the capabilities of the driver.
type Capable interface {
	// Capabilities changes what the driver reports to Nomad. Without Exec the
	// core refuses commands in tasks.
	Capabilities(c *drivers.Capabilities)
}

// UserDefaulter is an Instance whose tasks do not run as the agent by default.
type UserDefaulter interface {
	// DefaultUser is the user of tasks whose jobs name none, as a job would write it,
	// where the agent is root. An empty string is the agent's own user.
	DefaultUser() string
}

// Request is one task to be started.
type Request[T any] struct {
	Config T                   // its configuration, validated
	Task   *drivers.TaskConfig // as Nomad hands it over

	*startup
}

// Run returns a command for a program, with everything filled in that does not
// depend on the driver: environment, directory, user, limits, devices.
func (r Request[T]) Run(program string, args ...string) *task.Command {
	cmd := r.base
	cmd.Path, cmd.Args = program, args
	return &cmd
}

// User is the user that the task will run as, nil for the agent's own.
func (r Request[T]) User() *task.User { return r.base.User }

// StateDir is a directory that exists from the creation of the task's process until
// DestroyTask has removed everything of the task, even if plugin or supervisor is
// killed meanwhile. A resource that the task acquires is in use for as long, so this
// path identifies its user. The directory is the supervisor's: put nothing there.
func (r Request[T]) StateDir() string { return r.stateDir }

// Event shows a sentence among the task's events, at once. Nomad keeps the last ten
// of a task (structs.TaskState), its own included. It may be called from any
// goroutine until Command returns.
func (r Request[T]) Event(format string, args ...any) { r.event(fmt.Sprintf(format, args...)) }

// Finally has f called at the end of the start, successful or not. The last one
// registered is called first.
func (r Request[T]) Finally(f func()) { r.finally = append(r.finally, f) }

// startup is what Command gets and reports besides the task's own configuration.
type startup struct {
	base     task.Command
	stateDir string
	event    func(message string)
	finally  []func()
}

func (s *startup) over() {
	for _, f := range slices.Backward(s.finally) {
		f()
	}
}

// Run is one run of a task.
type Run struct {
	ID         string                 // Nomad's, new for each start
	Command    *task.Command          // what runs, nil if the engine does not know it
	Attributes map[string]string      // for a person, such as the pid
	Network    *drivers.DriverNetwork // where the task can be reached, nil for the host's own addresses

	// AllocDir and Task tell where its files are: <AllocDir>/<Task> is its directory,
	// and <AllocDir>/alloc/logs/<Task>.stderr.N its output, the largest N being the
	// newest. A task may write to both.
	AllocDir, Task string

	// StderrFrom is where this run's stderr begins: earlier runs write to the same files.
	StderrFrom task.LogPlace
}

// Ended is a run that has ended. All that its process wrote is in the files, but
// where Nomad's logmon collects the output it may be a moment behind.
type Ended struct {
	Run
	Exit    *task.Exit
	Stopped bool // Nomad has ended it
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

func newStart[T any](s *schema.Schema[T], i Instance[T], cfg *drivers.TaskConfig, begun *startup) (*Start, error) {
	config, err := s.DecodeTask(cfg)
	if err != nil {
		return nil, err
	}
	command := func(ctx context.Context, base task.Command, stateDir string) (*task.Command, error) {
		begun.base, begun.stateDir = base, stateDir
		return i.Command(ctx, Request[T]{Config: config, Task: cfg, startup: begun})
	}
	return &Start{Task: cfg, Config: &config, Command: command}, nil
}
