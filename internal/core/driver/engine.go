// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Engine is a backend that starts, recovers and destroys tasks. The default engine (local) runs them as processes of
// this host, under the supervisor. A driver whose tasks run elsewhere is an EngineProvider. Driver does the rest for
// every engine: it decodes configurations, stores handles, waits for exits, streams output and statistics, and reports
// events. All methods may be called concurrently. An engine may also be a Prober and Capable. If it has a method
// Close() error, Driver.Close calls that method; tasks keep running.
type Engine interface {
	// Start runs a task and returns once its program runs. After an error, nothing remains of
	// the task. ctx ends when the agent no longer waits for the start; from then on, nothing may be
	// started. An earlier run of the same task and allocation is either returned (see Claimer) or has
	// ended when Start returns.
	Start(ctx context.Context, s *Start) (Task, error)

	// Recover returns a task that an earlier plugin process started. c is the configuration that StartTask got, as
	// stored by Nomad, and saved is the result of Saver.Saved. A task that has ended in the meantime is recovered too.
	// After an error, Nomad destroys the task and starts it again.
	Recover(ctx context.Context, c *drivers.TaskConfig, saved []byte, event Event) (Task, error)

	// Destroy kills the remaining processes of a task and removes everything that belongs to it. It also
	// works for a task that this process never saw. If nothing of the task exists, Destroy returns nil.
	Destroy(ctx context.Context, id string) error
}

// Prober is an Engine that reports the state of the node.
type Prober interface {
	// Probe is called every 30 s while an agent uses the driver. An error makes the driver unhealthy,
	// or undetected if the error is an Undetected. The error's text is the health description.
	Probe(ctx context.Context) (Node, error)
}

// Node is the state of the node as an Engine reports it.
type Node struct {
	Attributes map[string]*pstructs.Attribute // names are relative to driver.<Name>
	Missing    []string                       // limitations, shown in the health description
	Removed    []string                       // ids of tasks that were removed because no agent will ask for them

	// Again is the time until the next probe if a change is expected in less than 30 s, and otherwise zero.
	Again time.Duration
}

// EngineProvider is an Instance with its own engine. PluginOptions and TaskOptions apply to the
// local engine only.
type EngineProvider interface {
	Engine() Engine
}

// Event reports a message about a task: as one of the task's events or, while Nomad stops the task,
// in the exit message.
type Event func(format string, args ...any)

// Start describes a task to start.
type Start struct {
	Task        *drivers.TaskConfig // as passed by Nomad
	Config      any                 // the decoded config block of the task, a *T (see Plugin)
	DefaultUser string              // the driver's default, for a task without a user

	// Command asks the driver for the task's command. The engine passes base, which has all fields that do not depend
	// on the driver (see Request.Run), and the directory that Request.StateDir returns.
	Command func(ctx context.Context, base task.Command, stateDir string) (*task.Command, error)

	// Event may be called for as long as the task exists.
	Event Event

	// Progress, unlike Event, emits an event immediately. Do not call it after Engine.Start has returned.
	Progress Event
}

// Task is one run of a task in an engine. After Engine.Destroy, only Ended, Exit and AfterEnd are called; embed Ending
// to implement these three. A Task may also be a Saver, Claimer and Describer, and either a Sampler and Executor, or a
// Forwarder.
type Task interface {
	// Ended returns a channel that is closed when the task has ended. Exit then returns the task's exit, or nil if the
	// exit is unknown.
	Ended() <-chan struct{}
	Exit() *task.Exit

	// AfterEnd calls f in its own goroutine when the task has ended, unless stop was called before. A caller can
	// thereby wait for many tasks without a goroutine for each.
	AfterEnd(f func()) (stop func() bool)

	// Signal sends a signal, by its name in signal(7), to the main process. SIGKILL must end the task.
	Signal(ctx context.Context, signal string) error

	// Stop sends the signal (if empty, the engine's default), kills the remaining processes at the
	// timeout, and returns when none is left. After an error, Nomad retries for minutes.
	Stop(ctx context.Context, timeout time.Duration, signal string) error
}

// Ending implements Ended, Exit and AfterEnd for a Task that embeds it. The zero value is a running task.
type Ending struct {
	mu   sync.Mutex
	life context.Context // ends with the task; life and end are set on first use
	end  context.CancelFunc
	exit *task.Exit
}

// context returns a context that ends with the task.
func (e *Ending) context() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life == nil {
		e.life, e.end = context.WithCancel(context.Background())
	}
	return e.life
}

// Ended is part of Task.
func (e *Ending) Ended() <-chan struct{} { return e.context().Done() }

// AfterEnd is part of Task.
func (e *Ending) AfterEnd(f func()) (stop func() bool) { return context.AfterFunc(e.context(), f) }

// Exit is part of Task.
func (e *Ending) Exit() *task.Exit {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.exit
}

// End marks the task as ended. Only the first call has an effect. exit is nil if the exit is
// unknown.
func (e *Ending) End(exit *task.Exit) {
	life := e.context()
	e.mu.Lock()
	defer e.mu.Unlock()
	if life.Err() == nil {
		e.exit = exit
		e.end()
	}
}

// Saver is a Task that Recover can't find by its id alone.
type Saver interface {
	// Saved returns the state to pass to Recover. Nomad stores this state on disk together with the task's
	// environment. Both must fit into one message, which Nomad limits to 4 MiB.
	Saved() ([]byte, error)
}

// Claimer is a Task that Start can find again without its handle.
type Claimer interface {
	// Claim records that an agent knows of this run. It is called before the agent gets any result on which it may act.
	// A run that is not claimed may have been started for an agent that was killed during StartTask. A Start for the
	// same allocation, task and configuration may therefore return it.
	Claim() error
}

// Describer is a Task that sets fields of its Run that Driver does not set.
type Describer interface {
	Describe(r *Run)
}

// Sampler is a Task with statistics.
type Sampler interface {
	// Stats returns a sample of the task's resource usage, or nil if none is available now. One
	// goroutine samples all tasks, so Stats must return quickly.
	Stats(ctx context.Context) (*drivers.TaskResourceUsage, error)
}

// Forwarder is a Task that another driver runs: Nomad's calls are forwarded to that driver, with
// the same arguments and results. It is neither a Sampler nor an Executor.
type Forwarder interface {
	TaskStats(ctx context.Context, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error)
	ExecTask(command []string, timeout time.Duration) (*drivers.ExecTaskResult, error)
	ExecTaskStreamingRaw(ctx context.Context, command []string, tty bool, stream drivers.ExecTaskStream) error
}

// Executor is a Task in which commands can be run.
type Executor interface {
	// Exec runs a command in the task and returns its exit after all output is written. The command is killed when ctx
	// ends. Streams may be nil. If Stdout and Stderr are the same, only one goroutine may write at a time. Exec closes
	// each stream when that stream has ended.
	Exec(ctx context.Context, o *drivers.ExecOptions) (*task.Exit, error)
}
