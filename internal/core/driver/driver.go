package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/lib/cpustats"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/fsisolation"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Driver implements drivers.DriverPlugin for any Plugin. Nomad calls it from
// many goroutines.
type Driver struct {
	plugin   *erased
	name     string
	logger   hclog.Logger
	eventer  *eventer.Eventer
	sampling worker      // reads all statistics
	calm     *time.Timer // fires when the last start is a while ago
	ctx      context.Context

	mu        sync.Mutex
	instance  *instance // nil before SetConfig
	options   PluginOptions
	root      string // <state_dir>/<name>, below which each agent has a store
	denied    denied
	compute   cpustats.Compute
	handles   map[string]*handle
	executors map[string]*supervisor.Client // by store directory: in practice one
	calls     map[string]context.Context    // by task id: StartTask under way
	starts    map[string]chan struct{}      // by allocation and task: closed when the start is over
	destroyed []destroyed                   // the last ones
	listeners int                           // streams of TaskEvents
	unheard   []*drivers.TaskEvent          // what happened while there were none
	heardBy   time.Time                     // when Nomad will have taken the last event of any task
	swept     time.Time                     // when what Nomad gave up was looked for
}

var (
	_ drivers.DriverPlugin               = (*Driver)(nil)
	_ drivers.ExecTaskStreamingRawDriver = (*Driver)(nil)
	_ plugin.StartCaller                 = (*Driver)(nil)
)

// New returns the driver of a plugin. Nothing runs before an agent configures
// it. Its life ends with ctx or Close; tasks go on.
func New[C, T any](ctx context.Context, logger hclog.Logger, p Plugin[C, T]) *Driver {
	return newDriver(ctx, logger, erase(p))
}

// Main is the whole main function of a driver plugin.
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
	return &Driver{
		plugin: p, name: p.name, logger: logger, ctx: ctx,
		eventer:  eventer.NewEventer(ctx, logger),
		sampling: newWorker(ctx),
		// a burst of starts leaves many times the garbage of what is kept of it
		calm:      time.AfterFunc(time.Hour, debug.FreeOSMemory),
		options:   defaultPluginOptions(),
		calls:     map[string]context.Context{},
		starts:    map[string]chan struct{}{},
		handles:   map[string]*handle{},
		executors: map[string]*supervisor.Client{},
	}
}

// Close lets go of the supervisor. Tasks go on.
func (d *Driver) Close() error {
	d.calm.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	for dir, e := range d.executors {
		e.Close()
		delete(d.executors, dir)
	}
	return nil
}

// PluginInfo is part of base.BasePlugin.
func (d *Driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return plugin.DriverInfo(d.name), nil
}

// ConfigSchema is part of base.BasePlugin.
func (d *Driver) ConfigSchema() (*hclspec.Spec, error) {
	return d.plugin.config.Spec(), nil
}

// SetConfig is part of base.BasePlugin. Nomad calls it without an agent's
// configuration too, to see whether it is valid, in processes that it ends soon.
func (d *Driver) SetConfig(c *base.Config) error {
	options, i, err := d.plugin.configure(c.PluginConfig, d.logger)
	if err != nil {
		return err
	}
	deny, err := newDenied(options)
	if err != nil {
		return err
	}
	root, err := stateRoot(options.StateDir, d.name)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.instance, d.options, d.denied, d.root = i, options, deny, root
	if c.AgentConfig != nil && c.AgentConfig.Driver != nil {
		d.compute = c.AgentConfig.Compute()
	}
	return nil
}

// TaskConfigSchema is part of drivers.DriverPlugin.
func (d *Driver) TaskConfigSchema() (*hclspec.Spec, error) {
	return d.plugin.task.Spec(), nil
}

// Capabilities is part of drivers.DriverPlugin. The last two cross the wire only
// with the interceptor of package plugin.
func (d *Driver) Capabilities() (*drivers.Capabilities, error) {
	d.mu.Lock()
	collector := task.Collector(d.options.LogCollection)
	d.mu.Unlock()
	c := &drivers.Capabilities{
		SendSignals:          true,
		Exec:                 true,
		FSIsolation:          fsisolation.None,
		NetIsolationModes:    []drivers.NetIsolationMode{drivers.NetIsolationModeHost, drivers.NetIsolationModeGroup},
		MountConfigs:         drivers.MountConfigSupportNone,
		DisableLogCollection: collector == task.CollectorDriver,
	}
	if i, ok := optional[Capable](d); ok {
		i.Capabilities(c)
	}
	return c, nil
}

// RecoverTask is part of drivers.DriverPlugin: it takes over a task that an
// earlier plugin process started. A task that has ended meanwhile is recovered
// too, so that WaitTask can tell how.
func (d *Driver) RecoverTask(th *drivers.TaskHandle) error {
	if th == nil || th.Config == nil {
		return errors.New("failed to recover task: no handle")
	}
	if h := d.settled(th.Config.ID); h != nil {
		return h.claim()
	}
	saved, st, err := loadHandle(th)
	if err != nil {
		return fmt.Errorf("failed to recover task: %w", err)
	}
	h := newHandle(th.Config, d.executor(saved.StoreDir), st, saved)
	h.recovered = true
	close(h.begun)
	h.exit = d.exitOfDestroyed(th.Config.ID)
	known := h.exit != nil
	if !d.keep(h) || known {
		return nil // another call was quicker, or nothing is left to be found
	}
	status, err := h.executor.Adopt(d.ctx, st)
	if err == nil {
		err = h.claim() // as late as can be: an agent that is told of an error here asks for a start
	}
	if err != nil {
		d.forget(th.Config.ID)
		return fmt.Errorf("failed to recover task: %w", err)
	}
	if status.Running {
		d.event(h, "Re-attached to the running task (pid %d)", st.Identity.PID)
	}
	return nil
}

// StartTask is part of drivers.DriverPlugin. It returns when the program itself
// runs; on an error nothing of the task is left. Where an agent was killed before it
// knew of the task, and the next one asks for it again, that is the run it gets.
func (d *Driver) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	i := d.configured()
	if i == nil {
		return nil, nil, errors.New("driver is not configured")
	}
	decoded, err := i.decode(cfg)
	if err != nil {
		return nil, nil, err
	}
	saved := savedHandle{
		StoreDir: filepath.Join(d.stateRoot(), cfg.NodeID), KillMode: task.KillMode(decoded.options.KillMode), StartedAt: time.Now(),
	}
	begun := &startup{
		stateDir: task.Store{Dir: saved.StoreDir}.TaskDir(cfg.ID),
		event:    func(text string) time.Time { return d.emit(taskEvent(cfg, text)) },
	}
	defer begun.over()
	ctx := d.callContext(cfg.ID)
	st, notes, err := d.newState(ctx, cfg, decoded, begun)
	if err != nil {
		return nil, nil, err
	}
	over, err := d.onlyStart(ctx, runOf(cfg))
	if err != nil {
		return nil, nil, fmt.Errorf("task is not started: the agent that asked for it is gone: %w", err)
	}
	defer over()
	saved.StartedAt = time.Now()
	h := newHandle(cfg, d.executor(saved.StoreDir), st, saved)
	defer close(h.begun)
	h.heardAt(begun.lastHeardBy())
	// kept first: what the supervisor has to say of the start is about this task
	if !d.keep(h) {
		return nil, nil, fmt.Errorf("task %q has been started already", cfg.ID)
	}
	if st, err = h.executor.Launch(d.ctx, st); err != nil {
		d.forget(cfg.ID)
		return nil, nil, recoverable(err)
	}
	h.started(st)
	d.forgetEarlier(cfg)
	d.calm.Reset(2 * time.Second)
	for _, note := range notes {
		d.event(h, "%s", note)
	}
	th := drivers.NewTaskHandle(1)
	th.Config = cfg
	th.State = drivers.TaskStateRunning
	if err := h.save(th); err != nil {
		_ = h.executor.Destroy(d.ctx, cfg.ID)
		d.forget(cfg.ID)
		return nil, nil, fmt.Errorf("failed to encode task handle: %w", err)
	}
	return th, nil, nil
}

// StartCall says with which context an agent calls StartTask for a task, which is
// not among that method's parameters. It ends when the agent is gone: then nobody
// would know of the task. The returned function is called after StartTask.
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
	return d.ctx // no agent, or one within this process
}

// recoverable tells Nomad of a start that may succeed later, which the job's
// restart policy then decides: a device may be plugged in again.
func recoverable(err error) error {
	var e *launch.Error
	if errors.As(err, &e) && e.Temporary {
		return structs.NewRecoverableError(err, true)
	}
	return err
}

// WaitTask is part of drivers.DriverPlugin. The channel brings exactly one
// result: an agent older than 1.11.3 panics without one.
func (d *Driver) WaitTask(ctx context.Context, id string) (<-chan *drivers.ExitResult, error) {
	h, err := d.handle(id)
	if err != nil {
		return nil, err
	}
	if err := h.claim(); err != nil {
		return nil, err
	}
	exited, err := h.executor.Exited(id)
	if err != nil {
		if h.result() == nil {
			return nil, drivers.ErrTaskNotFound
		}
		ended := make(chan struct{})
		close(ended)
		exited = ended
	}
	d.waitedFor(h)
	result := make(chan *drivers.ExitResult, 1)
	go func() {
		defer close(result)
		select {
		case <-exited:
			if over := h.stopOver(); over != nil {
				select { // Nomad waits for that too, and for processes besides the main one
				case <-over:
				case <-ctx.Done():
				}
			}
			d.explained(ctx, h)
			d.heard(ctx, h)
			result <- h.tellExit()
		case <-ctx.Done():
			result <- &drivers.ExitResult{Err: ctx.Err()}
		}
	}()
	return result, nil
}

// StopTask is part of drivers.DriverPlugin: it signals, waits for the timeout,
// kills what is left, and returns when nothing is. A task that is not known is
// stopped, since any error makes Nomad ask again for minutes.
func (d *Driver) StopTask(id string, timeout time.Duration, signal string) error {
	h, err := d.handle(id)
	if err != nil {
		return nil
	}
	if err := h.claim(); err != nil {
		d.logger.Warn("stopping all the same", "task", id, "error", err)
	}
	defer h.stopping()()
	return d.stop(h, timeout, signal)
}

// DestroyTask is part of drivers.DriverPlugin. It works for an id that this
// process has never seen, from what is on disk.
func (d *Driver) DestroyTask(id string, force bool) error {
	h, err := d.handle(id)
	if err != nil {
		return d.destroyUnknown(id)
	}
	h.destroying.Lock()
	defer h.destroying.Unlock()
	if h.result() == nil {
		if !force {
			return fmt.Errorf("task %q still runs: stop it first", id)
		}
		defer h.stopping()()
	}
	if err := h.executor.Destroy(d.ctx, id); err != nil {
		return fmt.Errorf("failed to destroy task: %w", err)
	}
	d.noteDestroyed(h)
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
	sig, err := parseSignal(signal)
	if err != nil {
		return err
	}
	return h.executor.Signal(d.ctx, id, sig, task.KillProcess)
}

// configured is the instance of the configuration, nil before SetConfig.
func (d *Driver) configured() *instance {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.instance
}

// optional is the instance as one of its optional interfaces.
func optional[I any](d *Driver) (i I, ok bool) {
	if configured := d.configured(); configured != nil {
		i, ok = configured.any.(I)
	}
	return i, ok
}

func (d *Driver) handle(id string) (*handle, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.handles[id]; h != nil {
		return h, nil
	}
	return nil, drivers.ErrTaskNotFound
}

// keep makes a task known, unless one of that id is.
func (d *Driver) keep(h *handle) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handles[h.config.ID] != nil {
		return false
	}
	d.handles[h.config.ID] = h
	return true
}

func (d *Driver) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.handles, id)
}

func (d *Driver) stateRoot() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.root
}

// destroyUnknown destroys a task of which only the disk knows: in any agent's
// store, since an id is unique and nothing else tells whose it was.
func (d *Driver) destroyUnknown(id string) error {
	dirs, err := stores(d.stateRoot())
	if err != nil {
		return fmt.Errorf("failed to destroy task: %w", err)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(task.Store{Dir: dir}.TaskDir(id)); err == nil {
			return d.executor(dir).Destroy(d.ctx, id)
		}
	}
	return nil
}
