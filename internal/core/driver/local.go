// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/lib/cpustats"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// local is the engine that runs tasks as processes of this host, under supervisors. The files local_*.go contain
// everything that is specific to this host.
type local struct {
	name   string // of the driver
	logger hclog.Logger
	ctx    context.Context // of the driver

	settings atomic.Pointer[settings]

	mu      sync.Mutex
	clients map[string]*supervisor.Client // by store directory; usually one
	tasks   map[string]*localTask         // by id; each gets its events and its exit from a client
	starts  map[string]chan struct{}      // by allocation and task: closed when the start is over
	users   map[string]string             // dynamic users of recovered tasks, by allocation and task (rememberUser)
	swept   time.Time                     // when abandoned tasks were last searched for
}

// settings result from the last configuration.
type settings struct {
	options PluginOptions
	root    string // <state_dir>/<name>, with one store for each agent; empty before SetConfig
	denied  denied
	compute cpustats.Compute
}

var (
	_ Capable = (*local)(nil)
	_ Engine  = (*local)(nil)
	_ Prober  = (*local)(nil)
)

func newLocal(ctx context.Context, logger hclog.Logger, name string) *local {
	l := &local{
		name: name, logger: logger, ctx: ctx,
		clients: map[string]*supervisor.Client{}, tasks: map[string]*localTask{}, starts: map[string]chan struct{}{},
		users: map[string]string{},
	}
	l.settings.Store(&settings{options: defaultPluginOptions()})
	return l
}

// configure checks and sets the options. It changes nothing outside this process.
func (l *local) configure(o PluginOptions, agent *base.AgentConfig) error {
	deny, err := newDenied(o)
	if err != nil {
		return err
	}
	root, err := stateRoot(o.StateDir, l.name)
	if err != nil {
		return err
	}
	_, err = task.ParseCapabilities("allow_caps", o.AllowCaps)
	if err != nil {
		return err
	}
	_, err = seccompFilter(o.Seccomp, 0)
	if err != nil {
		return err
	}
	_, err = parseIsolate(o.Isolate...)
	if err != nil {
		return err
	}
	_, err = unveiledPaths("unveil_paths", o.UnveilPaths)
	if err != nil {
		return err
	}
	now := &settings{options: o, root: root, denied: deny, compute: l.settings.Load().compute}
	if agent != nil && agent.Driver != nil {
		now.compute = agent.Compute()
	}
	l.settings.Store(now)
	return nil
}

// Capabilities is part of Capable. DisableLogCollection reaches Nomad only through the interceptor of package plugin.
func (l *local) Capabilities(c *drivers.Capabilities) {
	c.NetIsolationModes = append(c.NetIsolationModes, drivers.NetIsolationModeGroup)
	if canMount() {
		c.MountConfigs = drivers.MountConfigSupportAll
	}
	options := l.settings.Load().options
	c.DynamicWorkloadUsers = options.DynamicUsers
	c.DisableLogCollection = options.LogCollection == string(task.CollectorDriver)
}

// Close closes the connections to the supervisors. Tasks and supervisors keep running.
func (l *local) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for dir, c := range l.clients {
		c.Close()
		delete(l.clients, dir)
	}
	return nil
}

// Recover is part of Engine.
func (l *local) Recover(ctx context.Context, c *drivers.TaskConfig, saved []byte, event Event) (Task, error) {
	id := c.ID
	t, err := l.load(id, saved)
	if err != nil {
		return nil, err
	}
	t.event = event
	l.release(id) // an earlier attempt may have failed and left its record of the task
	l.hold(t)
	if _, err := t.client.Adopt(ctx, t.state); err != nil {
		l.release(id)
		return nil, err
	}
	l.rememberUser(t)
	t.watch(t.state)
	return t, nil
}

// Destroy is part of Engine. Nomad passes the task's id, which is unique, but nothing that identifies the store. If
// this process does not know the task, Destroy therefore searches the stores of all agents.
func (l *local) Destroy(ctx context.Context, id string) error {
	if t := l.task(id); t != nil {
		return t.destroy(ctx)
	}
	dirs, err := stores(l.settings.Load().root)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if _, err := os.Stat(task.Store{Dir: dir}.TaskDir(id)); err == nil {
			return l.client(dir).Destroy(ctx, id)
		}
	}
	return nil
}

// client returns the client for an agent's store. A plugin serves one agent, so it normally has one client. It needs
// another only for tasks that were started before the operator changed state_dir.
func (l *local) client(storeDir string) *supervisor.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.clients[storeDir]; c != nil {
		return c
	}
	leaf := fmt.Sprintf("outrider-%s-%s", l.name, shortID(filepath.Base(storeDir)))
	c := supervisor.NewClient(supervisor.Config{
		Store: task.Store{Dir: storeDir},
		Leaf:  cgroup.Leaf(cgroups.now(), "", leaf),
		OnEvent: func(e supervisor.Event) {
			if t := l.task(e.ID); t != nil {
				t.event("%s", e.Message)
			}
		},
		OnExit: func(id string, e *task.Exit) {
			if t := l.task(id); t != nil {
				t.exited(e)
			}
		},
		Log: func(format string, args ...any) { l.logger.Info(fmt.Sprintf(format, args...)) },
	})
	l.clients[storeDir] = c
	return c
}

func (l *local) task(id string) *localTask {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tasks[id]
}

// hold registers a recovered task, which then gets its events and its exit.
func (l *local) hold(t *localTask) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks[t.id] = t
}

// holdNew registers a task that is about to start. It returns an error if the id is taken, or if another task has the
// same dynamic user.
func (l *local) holdNew(t *localTask) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tasks[t.id] != nil {
		return fmt.Errorf("task %q has been started already", t.id)
	}
	err := l.checkUser(t)
	if err == nil {
		l.tasks[t.id] = t
	}
	return err
}

// release drops this process's record of a task. If the task has not ended yet, its exit stays unknown.
func (l *local) release(id string) {
	l.mu.Lock()
	t := l.tasks[id]
	delete(l.tasks, id)
	l.mu.Unlock()
	if t != nil {
		t.abandon()
	}
}

func shortID(nodeID string) string {
	short, _, _ := strings.Cut(nodeID, "-")
	return short
}
