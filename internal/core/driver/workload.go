// Package driver is the one implementation of Nomad's task driver contract
// (plugins/drivers/driver.go, drivers.DriverPlugin). A plugin supplies a
// Workload: its name, its options, and how a task's configuration becomes a
// command. Lifecycle, recovery, limits, output, statistics, exec and events are
// here, the same for all.
package driver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/plugin"
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
	// driver unhealthy with these words, or undetected if it is an Undetected. Optional.
	Fingerprint func(context.Context) (map[string]*pstructs.Attribute, error)

	// DefaultUser is who runs the tasks whose jobs name no user, as a job would
	// write it, where the agent is root. Optional: such tasks run as the agent does.
	DefaultUser func() string

	// Command turns a task into the command to run. It may take its time, such as
	// for what has to be fetched, and then tells what it does with Request.Event; the
	// context ends when nobody waits for the start any more. An error fails the task
	// with these words, unless it is a structs.RecoverableError itself.
	Command func(context.Context, Request[T]) (*task.Command, error)

	// Ended looks at a task that has ended, also at one that an earlier plugin
	// process started, and returns what its author should read among the task's
	// events (of a task that Nomad stops: in the exit's message), or nothing. It is
	// called for several tasks at once; Nomad hears of the end when it has returned,
	// or after 10 s. Optional.
	Ended func(Ended) string

	// Commands are for a person: nomad-driver-python constraint.
	Commands []plugin.Command
}

// Request is one task to be started.
type Request[T any] struct {
	Config T                   // its configuration, validated
	Task   *drivers.TaskConfig // all that Nomad says about it

	*startup
}

// Run returns a command for a program with all that does not depend on the
// driver filled in: environment, directory, user, limits, devices.
func (r Request[T]) Run(program string, args ...string) *task.Command {
	cmd := r.base
	cmd.Path, cmd.Args = program, args
	return &cmd
}

// User is who the task will run as, nil for the agent's own user.
func (r Request[T]) User() *task.User { return r.base.User }

// StateDir is a directory that exists from when the task's process is made until
// nothing of the task is left (DestroyTask), whoever is killed meanwhile. What is
// lent to a task is in use for as long, so its path is what to write down of a
// borrower. It is the supervisor's: nothing is to be put there.
func (r Request[T]) StateDir() string { return r.stateDir }

// Event shows a sentence among the task's events, at once. Nomad keeps the last
// ten of a task (structs.TaskState), all else that happens to it included. It may be
// called from any goroutine, until Command returns.
func (r Request[T]) Event(format string, args ...any) { r.say(fmt.Sprintf(format, args...)) }

// Finally has f called when the start is over, whether it succeeded or not. What
// was asked last is called first.
func (r Request[T]) Finally(f func()) { r.finally = append(r.finally, f) }

// startup is what Command is told, and tells, besides the task's own configuration.
type startup struct {
	base     task.Command
	stateDir string
	event    func(string) time.Time // returns when Nomad will have taken it
	finally  []func()

	mu      sync.Mutex
	heardBy time.Time // when it will have taken the last
}

func (s *startup) say(text string) {
	by := s.event(text)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heardBy = by
}

func (s *startup) lastHeardBy() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heardBy
}

func (s *startup) over() {
	for _, f := range slices.Backward(s.finally) {
		f()
	}
}

// Ended is a task that has ended.
type Ended struct {
	ID      string        // Nomad's, of this run of the task
	Command *task.Command // what ran
	Exit    *task.Exit    // how it ended
	Stopped bool          // Nomad has ended it

	// AllocDir and Task tell where its output is: <AllocDir>/alloc/logs/<Task>.stderr.N,
	// the largest N being the newest, in a directory that the task may write to. All
	// that the process wrote is there, but where Nomad's logmon collects it may be a
	// moment behind. AllocDir is empty where nobody kept the output.
	AllocDir, Task string

	// StderrFrom is where this run's stderr begins, as earlier ones have written to the same files.
	StderrFrom task.LogPlace
}

// workload is a Workload without its type parameters.
type workload interface {
	about() (name, summary string)
	schemas() (plugin, task schema.Described)
	configure(msgpack []byte) (PluginOptions, error)
	fingerprint(context.Context) (map[string]*pstructs.Attribute, error)
	decode(*drivers.TaskConfig) (decodedTask, error)
	defaultUser() string
	ended(Ended) string
}

// decodedTask is a task's configuration, half understood: its general options,
// and how to make the command from the general part of it.
type decodedTask struct {
	config  any // all of it
	options TaskOptions
	command func(context.Context, *startup) (*task.Command, error)
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

func (w *typed[P, T]) defaultUser() string {
	if w.DefaultUser == nil {
		return ""
	}
	return w.DefaultUser()
}

func (w *typed[P, T]) ended(e Ended) string {
	if w.Ended == nil {
		return ""
	}
	return w.Ended(e)
}

func (w *typed[P, T]) decode(cfg *drivers.TaskConfig) (decodedTask, error) {
	config, err := w.task.DecodeTask(cfg)
	if err != nil {
		return decodedTask{}, err
	}
	d := decodedTask{config: config, options: defaultTaskOptions()}
	if o, ok := any(&config).(interface{ taskOptions() *TaskOptions }); ok {
		d.options = *o.taskOptions()
	}
	d.command = func(ctx context.Context, s *startup) (*task.Command, error) {
		cmd, err := w.Command(ctx, Request[T]{Config: config, Task: cfg, startup: s})
		if err == nil && cmd.Path == "" {
			err = fmt.Errorf("command is empty: name a program, such as command = \"/bin/sleep\"")
		}
		return cmd, err
	}
	return d, nil
}
