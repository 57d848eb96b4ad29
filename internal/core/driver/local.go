package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/lib/cpustats"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// local is the engine whose tasks are processes of this host: the client of their
// supervisor, and everything else that is bound to this host (the files local_*.go).
type local struct {
	name     string // the driver's
	logger   hclog.Logger
	ctx      context.Context // of the driver
	sampling worker          // reads all statistics

	mu      sync.Mutex
	options PluginOptions
	root    string // <state_dir>/<name>, below which each agent has a store
	denied  denied
	compute cpustats.Compute
	clients map[string]*supervisor.Client // by store directory: in practice one
	tasks   map[string]*localTask         // what the clients hold
	starts  map[string]chan struct{}      // by allocation and task: closed when the start is over
	swept   time.Time                     // when abandoned tasks were looked for
}

var (
	_ Capable = (*local)(nil)
	_ Engine  = (*local)(nil)
	_ Prober  = (*local)(nil)
)

func newLocal(ctx context.Context, logger hclog.Logger, name string) *local {
	return &local{
		name: name, logger: logger, ctx: ctx, sampling: newWorker(ctx), options: defaultPluginOptions(),
		clients: map[string]*supervisor.Client{}, tasks: map[string]*localTask{}, starts: map[string]chan struct{}{},
	}
}

// configure has no effect outside of this process.
func (l *local) configure(o PluginOptions, agent *base.AgentConfig) error {
	deny, err := newDenied(o)
	if err != nil {
		return err
	}
	root, err := stateRoot(o.StateDir, l.name)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.options, l.denied, l.root = o, deny, root
	if agent != nil && agent.Driver != nil {
		l.compute = agent.Compute()
	}
	return nil
}

// Capabilities is Capable. DisableLogCollection crosses the wire only with the
// interceptor of package plugin.
func (l *local) Capabilities(c *drivers.Capabilities) {
	c.NetIsolationModes = append(c.NetIsolationModes, drivers.NetIsolationModeGroup)
	c.DisableLogCollection = l.config().LogCollection == string(task.CollectorDriver)
}

func (l *local) config() PluginOptions {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.options
}

// Close ends the connections. Tasks and supervisors go on.
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
func (l *local) Recover(ctx context.Context, id string, saved json.RawMessage, event Event) (Task, error) {
	t, err := l.load(id, saved)
	if err != nil {
		return nil, err
	}
	t.event = event
	l.release(id) // a failed attempt's
	l.hold(t)
	var ended <-chan struct{}
	if _, err = t.client.Adopt(ctx, t.state); err == nil {
		ended, err = t.client.Exited(id)
	}
	if err != nil {
		l.release(id)
		return nil, err
	}
	t.watch(t.state, ended)
	return t, nil
}

// Destroy is part of Engine. It looks in any agent's store: an id is unique, and
// nothing else identifies the store.
func (l *local) Destroy(ctx context.Context, id string) error {
	dirs, err := stores(l.stateRoot())
	if err != nil {
		return fmt.Errorf("failed to destroy task: %w", err)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(task.Store{Dir: dir}.TaskDir(id)); err == nil {
			l.release(id)
			return l.client(dir).Destroy(ctx, id)
		}
	}
	return nil
}

// client returns the client for an agent's store. A plugin serves one agent, so
// there is one; only a handle from before a change of state_dir names another.
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

// hold has events and the exit of a task reach it. It returns false if there is a task of this id.
func (l *local) hold(t *localTask) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tasks[t.id] != nil {
		return false
	}
	l.tasks[t.id] = t
	return true
}

func (l *local) release(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tasks, id)
}

func (l *local) stateRoot() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.root
}

func shortID(nodeID string) string {
	short, _, _ := strings.Cut(nodeID, "-")
	return short
}

// maxSocketPath is what sun_path of unix(7) can hold.
const maxSocketPath = 107

// stateRoot is <state_dir>/<plugin>, checked as far as that can be done without
// making anything: what exists of it is nobody's but root's and this user's.
func stateRoot(configured, name string) (string, error) {
	dir := configured
	switch {
	case dir != "" && !filepath.IsAbs(dir):
		return "", fmt.Errorf("state_dir %q is not absolute: write it from /, such as \"/run/outrider\"", dir)
	case dir != "":
	case os.Geteuid() == 0:
		dir = "/run/outrider"
	default:
		dir = os.Getenv("XDG_STATE_HOME")
		if dir == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", errors.New("state_dir is not set, and the agent's user has no home directory for a default: set it in the plugin's config")
			}
			dir = filepath.Join(home, ".local", "state")
		}
		dir = filepath.Join(dir, "outrider")
	}
	root := filepath.Join(dir, name)
	const node = "/00000000-0000-0000-0000-000000000000"
	if n := len(task.Store{Dir: root + node}.Socket()); n > maxSocketPath {
		return "", fmt.Errorf("state_dir %q is %d bytes too long for a unix socket in it: choose a shorter one", dir, n-maxSocketPath)
	}
	return root, owned(root)
}

// owned refuses a directory for state that another user can replace.
func owned(dir string) error {
	if err := owndir.Check(dir); err != nil {
		return fmt.Errorf("state_dir can't be used: %w", err)
	}
	return nil
}

// stores lists the agents' stores below root, which is empty before SetConfig.
func stores(root string) ([]string, error) {
	if root == "" {
		return nil, nil
	}
	if err := owned(root); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("failed to list what is kept of tasks: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		if dir := filepath.Join(root, e.Name()); e.IsDir() && owned(dir) == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}
