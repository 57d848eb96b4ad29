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
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	core "github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// engine is the engine whose tasks run on hosts.
type engine struct {
	logger hclog.Logger
	hosts  map[string]*host.Host // by the name of the endpoint
	ctx    context.Context       // of all tasks
	cancel context.CancelFunc

	mu    sync.Mutex
	node  string                 // this node's id, empty until a task has told it
	tasks map[string]*remoteTask // by id, until they are destroyed
}

var (
	_ core.Engine  = (*engine)(nil)
	_ core.Capable = (*engine)(nil)
	_ core.Prober  = (*engine)(nil)
)

// newEngine connects to nothing yet.
func newEngine(c Config, logger hclog.Logger) *engine {
	debug.SetGCPercent(100) // plugin.Serve has less, for plugins that idle: this one carries the output of its tasks
	e := &engine{logger: logger, hosts: map[string]*host.Host{}, tasks: map[string]*remoteTask{}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	programs := map[string]string{runtime.GOARCH: "/proc/self/exe"} // as it runs, whatever has its name by now
	maps.Copy(programs, c.Programs)
	for name, endpoint := range c.Endpoints {
		e.hosts[name] = host.New(host.Config{
			Name: name, SSH: endpoint.SSH.config(), Programs: programs,
			Options: shim.Options{
				Dir: endpoint.Dir, DeniedHostUIDs: c.DeniedHostUIDs, DeniedHostGIDs: c.DeniedHostGIDs,
				DeniedEnvvars: c.DeniedEnvvars,
			},
		})
	}
	return e
}

// Close ends the connections. Tasks go on.
func (e *engine) Close() error {
	e.cancel()
	var errs []error
	for _, h := range e.hosts {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

// Capabilities is core.Capable.
func (e *engine) Capabilities(c *drivers.Capabilities) {
	c.DisableLogCollection = true // output comes from the host
}

// host is an endpoint by the name that a job uses.
func (e *engine) host(name string) (*host.Host, error) {
	if h := e.hosts[name]; h != nil {
		return h, nil
	}
	if len(e.hosts) == 0 {
		return nil, fmt.Errorf("endpoint %q is not known: this node's configuration of the plugin has none", name)
	}
	return nil, fmt.Errorf("endpoint %q is not known: this node has \"%s\"", name,
		strings.Join(slices.Sorted(maps.Keys(e.hosts)), "\", \""))
}

// Start is part of core.Engine. The host finds an earlier run of the same task that no agent knows of, by the same
// means as the local engine.
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
	cfg, err := hostConfig(s.Task, link.Dir)
	if err != nil {
		return nil, err
	}
	t := e.newTask(s.Task, h, saved{Endpoint: config.Endpoint, Logs: logsOf(s.Task, config)}, s.Event)
	if left := notCopied(s.Task); len(left) > 0 {
		s.Event("Not copied to the host: %s", strings.Join(left, ", "))
	}
	handle, _, err := link.Driver.StartTask(cfg)
	if err != nil {
		e.forget(t)
		if !link.Alive() { // it may run nevertheless
			go e.destroyLater(h, s.Task.ID)
			err = structs.NewRecoverableError(fmt.Errorf("the connection to endpoint %q was lost during the start: %w",
				config.Endpoint, err), true)
		}
		return nil, err
	}
	t.saved.AllocDir, t.saved.State = handle.Config.AllocDir, handle.DriverState
	go t.sample()
	return t, nil
}

// Recover is part of core.Engine. It does not wait for the host.
func (e *engine) Recover(_ context.Context, c *drivers.TaskConfig, text []byte, event core.Event) (core.Task, error) {
	var s saved
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("failed to decode task handle: %w", err)
	}
	h, err := e.host(s.Endpoint)
	if err != nil {
		return nil, err
	}
	t := e.newTask(c, h, s, event)
	go t.sample()
	return t, nil
}

// destroyTime is how long a destruction waits for a host that can't be reached.
const destroyTime = 15 * time.Second

// Destroy is part of core.Engine. A task that this process never saw may be on any host.
func (e *engine) Destroy(ctx context.Context, id string) error {
	e.mu.Lock()
	t := e.tasks[id]
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, destroyTime)
	defer cancel()
	if t == nil {
		var errs []error
		for _, h := range e.hosts {
			errs = append(errs, destroyOn(ctx, h, id))
		}
		return errors.Join(errs...)
	}
	err := destroyOn(ctx, t.host, id)
	if err != nil { // Nomad does not ask again
		go e.destroyLater(t.host, id)
	}
	e.forget(t)
	return err
}

func destroyOn(ctx context.Context, h *host.Host, id string) error {
	link, err := h.Connect(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- link.Driver.DestroyTask(id, true) }() // its end is the connection's at the latest
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the host does not answer: %w", ctx.Err())
	}
}

// destroyLater destroys a task as soon as its host can be reached. It ends with the plugin: what is left then goes
// with the allocation's directory, see forgetAllocs.
func (e *engine) destroyLater(h *host.Host, id string) {
	for e.ctx.Err() == nil {
		link, err := h.Keep(e.ctx)
		if err != nil {
			return
		}
		if err := link.Driver.DestroyTask(id, true); err == nil {
			return
		}
		select {
		case <-time.After(againTime):
		case <-e.ctx.Done():
		}
	}
}

// newTask is a task of this process.
func (e *engine) newTask(c *drivers.TaskConfig, h *host.Host, s saved, event core.Event) *remoteTask {
	t := &remoteTask{
		config: &drivers.TaskConfig{ID: c.ID, Name: c.Name, AllocID: c.AllocID, AllocDir: c.AllocDir, JobName: c.JobName},
		host:   h, saved: s, event: event, sampled: make(chan struct{}),
	}
	t.ctx, t.cancel = context.WithCancel(e.ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.NodeID != "" {
		e.node = c.NodeID
	}
	e.tasks[c.ID] = t
	h.Listen(c.ID, t.told)
	return t
}

// forget drops a task of which nothing is left on its host.
func (e *engine) forget(t *remoteTask) {
	e.mu.Lock()
	delete(e.tasks, t.config.ID)
	e.mu.Unlock()
	t.host.Listen(t.config.ID, nil)
	t.End(nil)
	t.cancel()
}
