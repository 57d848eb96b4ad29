// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/fsisolation"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
)

// Driver implements drivers.DriverPlugin for any Plugin: it manages the lifecycle of tasks on top
// of an Engine. Nomad calls its methods concurrently.
type Driver struct {
	plugin     *erased
	name       string
	logger     hclog.Logger
	eventer    *eventer.Eventer
	freeMemory *time.Timer // returns memory to the OS a while after the last start
	local      *local
	sampling   sampling
	instance   atomic.Pointer[instance] // built from the last configuration
	ctx        context.Context

	mu          sync.Mutex
	handles     map[string]*handle
	calls       map[string]context.Context // contexts of the StartTask calls in progress, by task id
	listeners   int                        // open TaskEvents streams
	pending     []*drivers.TaskEvent       // events emitted while no stream was open
	deliveredBy time.Time                  // when Nomad should have taken the last event of any task
}

var (
	_ drivers.DriverPlugin               = (*Driver)(nil)
	_ drivers.ExecTaskStreamingRawDriver = (*Driver)(nil)
	_ plugin.StartCaller                 = (*Driver)(nil)
)

// New returns the driver of a plugin. The driver does nothing until an agent configures it, and works
// until ctx ends or Close is called. Tasks keep running after that.
func New[C, T any](ctx context.Context, logger hclog.Logger, p Plugin[C, T]) *Driver {
	return newDriver(ctx, logger, erase(p))
}

// Main is the entire main function of a driver plugin.
func Main[C, T any](p Plugin[C, T]) {
	e := erase(p)
	supervise := func() bool { supervisor.Main(); return false }
	plugin.Serve(plugin.Plugin{
		Name: p.Name, Summary: p.Summary, Config: e.config, TaskConfig: e.task, Commands: p.Commands,
		Roles: append([]func() bool{supervise}, p.Roles...),
		Driver: func(ctx context.Context, logger hclog.Logger) drivers.DriverPlugin {
			return newDriver(ctx, logger, e)
		},
	})
}

func newDriver(ctx context.Context, logger hclog.Logger, p *erased) *Driver {
	logger = logger.Named(p.name)
	d := &Driver{
		plugin: p, name: p.name, logger: logger, ctx: ctx, local: newLocal(ctx, logger, p.name),
		eventer: eventer.NewEventer(ctx, logger), sampling: newSampling(),
		// StartTask resets this timer, because a burst of starts leaves far more garbage than memory in use
		freeMemory: time.AfterFunc(time.Hour, debug.FreeOSMemory),
		calls:      map[string]context.Context{},
		handles:    map[string]*handle{},
	}
	d.instance.Store(&instance{engine: d.local})
	go d.sampling.run(ctx, d.sample)
	return d
}

// Close closes the engine. Tasks keep running.
func (d *Driver) Close() error {
	d.freeMemory.Stop()
	if c, ok := d.instance.Load().engine.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// PluginInfo is part of base.BasePlugin.
func (d *Driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return plugin.Info(base.PluginTypeDriver, drivers.ApiVersion010, d.name), nil
}

// ConfigSchema is part of base.BasePlugin.
func (d *Driver) ConfigSchema() (*hclspec.Spec, error) { return d.plugin.config.Spec(), nil }

// TaskConfigSchema is part of drivers.DriverPlugin.
func (d *Driver) TaskConfigSchema() (*hclspec.Spec, error) { return d.plugin.task.Spec(), nil }

// SetConfig is part of base.BasePlugin. Nomad also calls it without an agent configuration, in
// short-lived processes that only validate the plugin's configuration.
func (d *Driver) SetConfig(c *base.Config) error {
	options, i, err := d.plugin.configure(c.PluginConfig, d.logger)
	if err != nil {
		return err
	}
	if p, ok := i.any.(EngineProvider); ok {
		i.engine = p.Engine()
	} else {
		i.engine = d.local
		if err := d.local.configure(options, c.AgentConfig); err != nil {
			return err
		}
	}
	d.instance.Store(i)
	d.logger.Debug("configured", "agent", c.AgentConfig != nil)
	return nil
}

// Capabilities is part of drivers.DriverPlugin.
func (d *Driver) Capabilities() (*drivers.Capabilities, error) {
	c := &drivers.Capabilities{
		SendSignals:       true,
		Exec:              true,
		FSIsolation:       fsisolation.None,
		NetIsolationModes: []drivers.NetIsolationMode{drivers.NetIsolationModeHost},
		MountConfigs:      drivers.MountConfigSupportNone, // sent to Nomad only by the interceptor of package plugin
	}
	if e, ok := d.instance.Load().engine.(Capable); ok {
		e.Capabilities(c)
	}
	if i, ok := optional[Capable](d); ok {
		i.Capabilities(c)
	}
	return c, nil
}

// RecoverTask is part of drivers.DriverPlugin: it re-attaches to a task that an earlier plugin
// process started. A task that has ended in the meantime is recovered too, so WaitTask can report
// its exit.
func (d *Driver) RecoverTask(th *drivers.TaskHandle) error {
	if th == nil || th.Config == nil {
		return errors.New("failed to recover task: no handle")
	}
	id := th.Config.ID
	if h := d.settled(id); h != nil {
		return h.claim()
	}
	h, saved, err := loadHandle(th)
	if err != nil {
		return fmt.Errorf("failed to recover task: %w", err)
	}
	h.busy.Lock()
	defer h.busy.Unlock()
	if !d.register(h) {
		return nil // another call recovers it
	}
	engine := d.instance.Load().engine
	t, err := engine.Recover(d.ctx, th.Config, saved, d.eventsOf(h))
	if err == nil {
		d.run(h, engine, t)
		err = h.claim() // last, because an agent that gets an error starts the task again instead of using this run
	}
	if err != nil {
		d.forget(id)
		return fmt.Errorf("failed to recover task: %w", err)
	}
	d.logger.Debug("task recovered", "task", id, "ended", h.hasEnded())
	if !h.hasEnded() {
		pid := ""
		if n, ok := h.run().Attributes["pid"]; ok {
			pid = fmt.Sprintf(" (pid %s)", n)
		}
		d.event(h, "Re-attached to the running task%s", pid)
	}
	return nil
}

// StartTask is part of drivers.DriverPlugin. It returns once the program runs; after an error,
// nothing remains of the task. If an agent was killed before it knew of the task, and the next
// agent starts the same task, StartTask returns the existing run.
func (d *Driver) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	i := d.instance.Load()
	if i.start == nil {
		return nil, nil, errors.New("driver is not configured")
	}
	if _, unknown := d.handle(cfg.ID); unknown == nil {
		return nil, nil, fmt.Errorf("task %q has been started already", cfg.ID)
	}
	h := newHandle(cfg)
	// events of the start are sent immediately, because Nomad calls WaitTask only later (see Driver.event)
	starting := &startup{event: func(message string) { h.delivered(d.emit(taskEvent(cfg, message))) }}
	defer starting.runFinally()
	s, err := i.start(cfg, starting)
	if err != nil {
		return nil, nil, err
	}
	d.logger.Debug("starting task", "task", cfg.ID)
	s.Event = d.eventsOf(h)
	s.Progress = func(format string, args ...any) { starting.event(fmt.Sprintf(format, args...)) }
	if i, ok := optional[UserDefaulter](d); ok {
		s.DefaultUser = i.DefaultUser()
	}
	t, err := i.engine.Start(d.callContext(cfg.ID), s)
	if err != nil {
		d.logger.Debug("failed to start task", "task", cfg.ID, "error", err)
		return nil, nil, err
	}
	h.startedAt = time.Now()
	d.run(h, i.engine, t)
	d.freeMemory.Reset(2 * time.Second)
	th, err := h.save(cfg)
	if err != nil {
		_ = i.engine.Destroy(d.ctx, cfg.ID)
		d.forget(cfg.ID)
		return nil, nil, fmt.Errorf("failed to encode task handle: %w", err)
	}
	run := h.run()
	d.logger.Debug("task started", "task", cfg.ID, "pid", run.Attributes["pid"])
	return th, run.Network, nil
}

// StartCall registers the context of a StartTask call, which has no context parameter. The context ends when the agent
// is gone. The start then ends too, because no agent would manage the task. The caller must call done after StartTask.
func (d *Driver) StartCall(ctx context.Context, id string) (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[id] = ctx
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.calls, id)
	}
}

func (d *Driver) callContext(id string) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ctx := d.calls[id]; ctx != nil {
		return ctx
	}
	return d.ctx // the caller is in this process, and does not use gRPC
}

// WaitTask is part of drivers.DriverPlugin. The channel delivers exactly one result, because agents
// older than 1.11.3 panic without one.
func (d *Driver) WaitTask(ctx context.Context, id string) (<-chan *drivers.ExitResult, error) {
	h, err := d.handle(id)
	if err != nil {
		return nil, err
	}
	if err := h.claim(); err != nil {
		return nil, err
	}
	d.flush(h)
	result := make(chan *drivers.ExitResult, 1)
	stop := h.task.AfterEnd(func() {
		defer close(result)
		result <- d.exitOf(ctx, h)
	})
	context.AfterFunc(ctx, func() {
		if stop() {
			defer close(result)
			result <- &drivers.ExitResult{Err: ctx.Err()}
		}
	})
	return result, nil
}

// exitOf waits until a stop in progress is complete, the driver has explained the exit, and the task's events are
// delivered. It then returns the task's exit. It stops waiting when ctx ends.
func (d *Driver) exitOf(ctx context.Context, h *handle) *drivers.ExitResult {
	explained := d.exited(h)
	over := h.stopOver()
	if over != nil {
		select { // the exit includes messages of the stop, and Nomad waits for StopTask anyway
		case <-over:
		case <-ctx.Done():
		}
	}
	d.waitExplained(ctx, h, explained)
	d.waitDelivered(ctx, h)
	return h.exitWithMessage()
}

// StopTask is part of drivers.DriverPlugin: it signals the task, kills the remaining processes at
// the timeout, and returns when none is left. An unknown task is not an error, because Nomad
// retries for minutes after any error.
func (d *Driver) StopTask(id string, timeout time.Duration, signal string) error {
	h, err := d.handle(id)
	if err != nil {
		return nil
	}
	if err := h.claim(); err != nil {
		d.logger.Warn("stopping the task despite an error", "task", id, "error", err)
	}
	d.logger.Debug("stopping task", "task", id, "signal", signal, "timeout", timeout)
	defer h.stopping()()
	return h.task.Stop(d.ctx, timeout, signal)
}

// DestroyTask is part of drivers.DriverPlugin. It also accepts an id that this process has never
// seen.
func (d *Driver) DestroyTask(id string, force bool) error {
	h, err := d.handle(id)
	if err != nil {
		if err := d.instance.Load().engine.Destroy(d.ctx, id); err != nil {
			return fmt.Errorf("failed to destroy task: %w", err)
		}
		return nil
	}
	h.busy.Lock()
	defer h.busy.Unlock()
	if !h.hasEnded() {
		if !force {
			return fmt.Errorf("task %q is still running: stop it first", id)
		}
		defer h.stopping()()
	}
	if err := h.engine.Destroy(d.ctx, id); err != nil {
		return fmt.Errorf("failed to destroy task: %w", err)
	}
	d.forget(id)
	d.logger.Debug("task destroyed", "task", id)
	return nil
}

// InspectTask is part of drivers.DriverPlugin.
func (d *Driver) InspectTask(id string) (*drivers.TaskStatus, error) {
	h, err := d.handle(id)
	if err != nil {
		return nil, err
	}
	return h.status(), nil
}

// SignalTask is part of drivers.DriverPlugin: the signal goes to the main process.
func (d *Driver) SignalTask(id string, signal string) error {
	h, err := d.handle(id)
	if err != nil {
		return err
	}
	return h.task.Signal(d.ctx, signal)
}

// optional returns the instance as the optional interface I, if the instance implements I.
func optional[I any](d *Driver) (i I, ok bool) {
	i, ok = d.instance.Load().any.(I)
	return i, ok
}
