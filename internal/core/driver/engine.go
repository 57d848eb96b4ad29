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

// Engine runs tasks. The local engine runs them as processes of this host, under the
// supervisor; a driver whose tasks run elsewhere is an EngineProvider. Above every
// engine is the same lifecycle (Driver): it decodes configurations, keeps handles,
// waits, streams and reports events. All methods are called from several goroutines.
// An engine may be a Prober, and Capable; one that has a method Close() error is
// closed with the driver. Its tasks go on.
type Engine interface {
	// Start runs a task and returns when its program itself runs. On an error nothing
	// of the task is left. The context ends when the agent does not wait for the start
	// any more: then nothing may be started. An earlier run of the same allocation's
	// task is either returned (see Claimer), or is over when Start returns.
	Start(ctx context.Context, s *Start) (Task, error)

	// Recover returns a task that an earlier plugin process started, with what it saved
	// (see Saver). c is what StartTask had, as Nomad has kept it. A task that has ended
	// meanwhile is recovered too. After an error Nomad destroys the task and starts it
	// again.
	Recover(ctx context.Context, c *drivers.TaskConfig, saved []byte, event Event) (Task, error)

	// Destroy kills what is left of a task, and removes everything of it. It works for a
	// task that this process never saw. It is no error if there is nothing.
	Destroy(ctx context.Context, id string) error
}

// Prober is an Engine with something to report of the node.
type Prober interface {
	// Probe is called every 30 s for as long as an agent uses the driver. An error makes
	// the driver unhealthy with this message, or undetected if it is an Undetected.
	Probe(ctx context.Context) (Node, error)
}

// Node is the state of an engine.
type Node struct {
	Attributes map[string]*pstructs.Attribute // each by its name below driver.<Name>
	Missing    []string                       // limitations, for the health's description
	Removed    []string                       // ids of tasks that were removed, since no agent will ask for them

	// Again is when to look again, if something is expected to change sooner than in 30 s.
	Again time.Duration
}

// EngineProvider is an Instance with an engine of its own. The options of
// PluginOptions and TaskOptions are the local engine's.
type EngineProvider interface {
	Engine() Engine
}

// Event reports a sentence about a task: among the task's events, or in the exit
// message while Nomad stops the task.
type Event func(format string, args ...any)

// Start is a task to be started.
type Start struct {
	Task        *drivers.TaskConfig // as Nomad hands it over
	Config      any                 // its decoded configuration, a pointer to the T of Plugin
	DefaultUser string              // the driver's, for a task that names none

	// Command asks the driver for the command. base is everything that does not depend
	// on the driver (Request.Run), stateDir is Request.StateDir.
	Command func(ctx context.Context, base task.Command, stateDir string) (*task.Command, error)

	// Event may be called for as long as the task exists.
	Event Event

	// Progress reports at once, until Start returns: what Event reports comes after that.
	Progress Event
}

// Task is one run of a task in an engine. It is used until Engine.Destroy, and its end
// also after that: an embedded Ending has the first three. It may be a Stopper, Saver,
// Claimer, Describer, and a Sampler and Executor, or a Forwarder.
type Task interface {
	// Ended is closed when the task has ended. Exit is how, nil if that is unknown.
	Ended() <-chan struct{}
	Exit() *task.Exit

	// AfterEnd calls f in a goroutine of its own when the task has ended, unless stop was
	// called before. A task that is waited for costs no goroutine.
	AfterEnd(f func()) (stop func() bool)

	// Signal sends a signal to the main process, by its name in signal(7). After SIGKILL
	// the task ends.
	Signal(ctx context.Context, signal string) error
}

// Ending is the end of a task, to embed in a Task. The zero value is that of a task that runs.
type Ending struct {
	mu   sync.Mutex
	life context.Context // ends with the task; made when it is needed, as is:
	end  context.CancelFunc
	exit *task.Exit
}

// context lasts as long as the task.
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

// End ends the task. Only the first call has an effect. exit is nil if it is unknown how
// the task ended.
func (e *Ending) End(exit *task.Exit) {
	life := e.context()
	e.mu.Lock()
	defer e.mu.Unlock()
	if life.Err() == nil {
		e.exit = exit
		e.end()
	}
}

// Stopper is a Task with a way of its own to stop. Any other gets the signal, by default
// SIGINT, and SIGKILL at the timeout.
type Stopper interface {
	// Stop sends a signal, by default the engine's own, kills what is left at the
	// timeout, and returns when nothing of the task runs. An error makes Nomad ask
	// again, for minutes.
	Stop(ctx context.Context, timeout time.Duration, signal string) error
}

// Saver is a Task that Recover can't find by its id alone.
type Saver interface {
	// Saved is what Recover gets. Nomad keeps it, on its disk, with the task's environment,
	// and limits messages to 4 MiB.
	Saved() ([]byte, error)
}

// Claimer is a Task that Start can find again without its handle.
type Claimer interface {
	// Claim is called before an agent is told anything of the task that it may act on.
	// Until then a Start for the same allocation and task, with the same
	// configuration, may return this run: an agent that was killed during StartTask
	// does not know of it.
	Claim() error
}

// Describer is a Task that knows more of its Run than the lifecycle does.
type Describer interface {
	Describe(r *Run)
}

// Sampler is a Task with statistics.
type Sampler interface {
	// Stats is a sample of the task's resource usage, nil if there is none now. One
	// goroutine takes the samples of all tasks, so it must return soon.
	Stats(ctx context.Context) (*drivers.TaskResourceUsage, error)
}

// Forwarder is a Task that another driver runs: whole calls of Nomad are passed on to that, with the same arguments and
// results. It is no Sampler and no Executor.
type Forwarder interface {
	TaskStats(ctx context.Context, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error)
	ExecTask(command []string, timeout time.Duration) (*drivers.ExecTaskResult, error)
	ExecTaskStreamingRaw(ctx context.Context, command []string, tty bool, stream drivers.ExecTaskStream) error
}

// Executor is a Task in which commands can be run.
type Executor interface {
	// Exec runs a command in the task and returns how it ended, when all of its output
	// is written. It is killed at the end of the context. Streams may be nil; Stdout
	// and Stderr may be the same, then only one goroutine may write at a time. A
	// stream is closed at its end.
	Exec(ctx context.Context, o *drivers.ExecOptions) (*task.Exit, error)
}
