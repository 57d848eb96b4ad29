// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

type engine struct {
	logger hclog.Logger
	hosts  map[string]*host.Host // key: name of the endpoint
	ctx    context.Context       // the parent of all tasks' contexts
	cancel context.CancelFunc
	nomad  nomad

	mu    sync.Mutex
	tasks map[string]*remoteTask // key: task id in Nomad; Destroy removes the task

	left sync.Map // keys: *remoteTask; their runs must still be ended, because the host failed or was unreachable
}

var (
	_ core.Capable = (*engine)(nil)
	_ core.Prober  = (*engine)(nil)
)

func newEngine(c Config, logger hclog.Logger) *engine {
	debug.SetGCPercent(100) // plugin.Serve sets less, for plugins that are mostly idle; this one copies output of tasks
	e := &engine{logger: logger, hosts: map[string]*host.Host{}, tasks: map[string]*remoteTask{}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.nomad.client = agentapi.New(c.API)
	programs := map[string]string{runtime.GOARCH: "/proc/self/exe"} // the running program, even if its file was replaced
	maps.Copy(programs, c.Programs)
	for name, endpoint := range c.Endpoints {
		e.hosts[name] = host.New(host.Config{
			Name: name, SSH: *endpoint.SSH, Programs: programs,
			Options: shim.Options{
				Dir: endpoint.Dir, DeniedHostUIDs: c.DeniedHostUIDs, DeniedHostGIDs: c.DeniedHostGIDs,
				DeniedEnvvars: c.DeniedEnvvars,
			},
			Event: func(event *drivers.TaskEvent) { e.forward(name, event) },
		})
	}
	return e
}

// Endpoints returns the configured hosts by name, and a function that checks whether the driver can ask the agent's API
// why Nomad ends a task. Both are for the plugin's commands.
func Endpoints(c Config) (hosts map[string]*host.Host, answers func(context.Context) error) {
	e := newEngine(c, hclog.NewNullLogger())
	return e.hosts, e.nomad.answers
}

// Close ends the connections. Tasks keep running.
func (e *engine) Close() error {
	e.cancel()
	for _, h := range e.hosts {
		h.Close()
	}
	return nil
}

func (e *engine) Capabilities(c *drivers.Capabilities) {
	c.DisableLogCollection = true // output comes from the host
}

func (e *engine) host(name string) (*host.Host, error) {
	h := e.hosts[name]
	if h == nil {
		return nil, fmt.Errorf("unknown endpoint %q: this node has %q", name, slices.Sorted(maps.Keys(e.hosts)))
	}
	return h, nil
}

// Start implements core.Engine. If the host already runs the task, Start takes this run over. It finds the run in the
// host's records, even if no agent has recorded it.
func (e *engine) Start(ctx context.Context, s *core.Start) (core.Task, error) {
	config, ok := s.Config.(*TaskConfig)
	if !ok {
		return nil, fmt.Errorf("the task's configuration is a %T", s.Config)
	}
	h, err := e.host(config.Endpoint)
	if err != nil {
		return nil, err
	}
	link, err := h.Connect(ctx)
	if err != nil {
		return nil, structs.NewRecoverableError(err, true)
	}
	cfg, hash, err := hostConfig(s.Task, link.Dir)
	if err != nil {
		return nil, err
	}
	system, wanted, err := e.nomad.begins(ctx, cfg.Namespace, cfg.AllocID)
	if err != nil {
		return nil, err
	}
	node := ""
	if system {
		node = cfg.NodeID
	}
	t := e.newTask(s.Task, h, saved{
		Endpoint: config.Endpoint, Key: keyOf(s.Task, node), Hash: hash, Logs: logsOf(s.Task, config),
		OnDrain: config.OnDrain, OnLost: config.OnLost, OrphanTimeout: config.OrphanTimeout.Duration(),
	}, s.Event)
	t.wanted = wanted
	if err := t.start(ctx, link, cfg, s.Progress); err != nil {
		e.forget(t)
		return nil, err
	}
	return t, nil
}

// start claims the task's run on the host. If no run exists, it copies the task's files and starts the task.
func (t *remoteTask) start(
	ctx context.Context, link *host.Link, cfg *drivers.TaskConfig, progress core.Event,
) error {
	reply, err := t.claim(ctx, link, progress)
	if err != nil {
		return err
	}
	t.engine.mu.Lock()
	t.saved.RunID = reply.TaskID
	t.engine.mu.Unlock()
	if reply.Verdict == shim.Have {
		t.event("Took over the running task of allocation %s", plain.Line(reply.Owner.AllocID, maxMessage))
		// only secrets: the old tokens may be revoked, but the running task may have changed its other files
		now := time.Now().Round(0)
		if err := t.copyFiles(ctx, link, allocdir.TaskSecrets); err != nil {
			t.event("The task keeps the secrets of the previous allocation: %v", err)
		}
		t.saved.Copied = now
		return nil
	}
	t.saved.Copied = reply.Copied // copy only newer files: the task may have changed the older ones before its restart
	err = t.copyFiles(ctx, link, ".")
	again := err != nil
	if err == nil {
		_, _, err = link.Driver.StartTask(cfg)
		again = structs.IsRecoverable(err)
	}
	if err == nil {
		return nil
	}
	if !link.Alive() { // the task may be running: if so, the next start takes it over
		return structs.NewRecoverableError(fmt.Errorf("the connection to endpoint %q was lost during the start: %w",
			t.saved.Endpoint, err), true)
	}
	t.engine.left.Store(t, true)
	err = errors.Join(err, t.endRun(ctx, link)) // also gives up the claim
	return structs.NewRecoverableError(err, again)
}

// Recover implements core.Engine. It does not wait for a connection to the host.
func (e *engine) Recover(_ context.Context, c *drivers.TaskConfig, text []byte, event core.Event) (core.Task, error) {
	var s saved
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("failed to decode task handle: %w", err)
	}
	h, err := e.host(s.Endpoint)
	if err != nil {
		return nil, err
	}
	return e.newTask(c, h, s, event), nil
}

// Destroy implements core.Engine. A task that this process does not know may be on any host, so it is ended on each.
func (e *engine) Destroy(ctx context.Context, id string) error {
	e.mu.Lock()
	t := e.tasks[id]
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second) // limits the wait for an unreachable host
	defer cancel()
	if t == nil {
		allocID, _, _ := strings.Cut(id, "/")
		t = &remoteTask{engine: e, config: &drivers.TaskConfig{AllocID: allocID}, saved: saved{RunID: id}}
		var errs []error
		for _, h := range e.hosts {
			link, err := h.Connect(ctx)
			if err == nil {
				err = t.endRun(ctx, link)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	defer e.forget(t)
	if !t.over() && !t.isTaken() {
		// Nomad destroys a running task if it considers the task lost, or after a failed recovery
		meant := t.meant(ctx)
		if meant.release {
			t.release(meant.reason)
		}
	}
	if t.parted.Load() || t.isTaken() {
		return nil
	}
	e.left.Store(t, true) // if this attempt fails, tidy repeats it; Nomad does not
	link, err := t.host.Connect(ctx)
	if err != nil {
		return err
	}
	return t.endRun(ctx, link)
}

func (e *engine) newTask(c *drivers.TaskConfig, h *host.Host, s saved, event core.Event) *remoteTask {
	t := &remoteTask{
		config: &drivers.TaskConfig{
			ID: c.ID, Name: c.Name, AllocID: c.AllocID, AllocDir: c.AllocDir, NodeID: c.NodeID, User: c.User,
		},
		engine: e, host: h, saved: s, event: event,
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	t.ctx, t.cancel = context.WithCancel(e.ctx)
	e.tasks[c.ID] = t
	return t
}

// forget drops a task after Destroy or after a failed start.
func (e *engine) forget(t *remoteTask) {
	e.mu.Lock()
	delete(e.tasks, t.config.ID)
	e.mu.Unlock()
	t.End(nil)
	t.cancel()
}

// forward passes an event of a run on a host to the tasks on this node that have this run.
func (e *engine) forward(endpoint string, event *drivers.TaskEvent) {
	e.mu.Lock()
	var of []*remoteTask
	for _, t := range e.tasks {
		if t.saved.Endpoint == endpoint && t.saved.RunID == event.TaskID {
			of = append(of, t)
		}
	}
	e.mu.Unlock()
	for _, t := range of {
		t.forward(event.Message)
	}
}
