package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// executor runs tasks for the driver: on this host the supervisor's client. It is
// an interface so that a driver whose tasks run elsewhere can bring another.
// The contracts are those of supervisor.Client.
type executor interface {
	Launch(context.Context, *task.State) (*task.State, error)
	Adopt(context.Context, *task.State) (*supervisor.Status, error)
	Exited(id string) (<-chan struct{}, error)
	Exit(id string) *task.Exit
	Signal(ctx context.Context, id string, sig unix.Signal, mode task.KillMode) error
	Kill(ctx context.Context, id string) error
	Destroy(ctx context.Context, id string) error
	Forget(id string)
	Exec(ctx context.Context, id string, spec *supervisor.ExecSpec, stdio [3]*os.File) (<-chan *task.Exit, error)
}

var _ executor = (*supervisor.Client)(nil)

// executor returns the client for an agent's store. A plugin serves one agent, so
// there is one; only a handle from before a change of state_dir names another.
func (d *Driver) executor(storeDir string) *supervisor.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.executors[storeDir]; e != nil {
		return e
	}
	e := supervisor.NewClient(supervisor.Config{
		Store:   task.Store{Dir: storeDir},
		Leaf:    cgroup.Leaf(cgroups.now(), "", fmt.Sprintf("outrider-%s-%s", d.name, shortID(filepath.Base(storeDir)))),
		OnEvent: d.supervisorEvent,
		OnExit:  d.taskExited,
		Log:     func(format string, args ...any) { d.logger.Info(fmt.Sprintf(format, args...)) },
	})
	d.executors[storeDir] = e
	return e
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
