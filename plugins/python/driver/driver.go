// Package driver is the python driver: it turns a task's configuration into a command of an interpreter, in an
// environment that has what the program requires.
package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// pythonDriver is what outlives a single task. All but the configuration comes
// about when it is used: Nomad also configures plugins just to look at them.
type pythonDriver struct {
	logger hclog.Logger

	// minRefresh is the age up to which an environment is not built anew for a job with refresh either: one that fails
	// and is started again every few seconds would fill the cache with copies in use, and have others removed.
	minRefresh time.Duration

	mu       sync.Mutex
	setup    *setup
	tidied   time.Time // when the cache was
	rejected []string  // files that are no interpreters, as they were logged

	tidying sync.Mutex // held while the cache is tidied, and never waited for
}

// setup is what follows from a configuration, and does not change.
type setup struct {
	config     Config
	finder     *interpreter.Finder
	installers *installerFinder
	cache      *environment.Cache
	users      *environment.Users // who runs installers, nil: this process's user
	unsuited   unsuited
}

func newDriver() *pythonDriver {
	return &pythonDriver{
		logger:     hclog.NewNullLogger(),
		minRefresh: time.Minute,
	}
}

// New is the driver as the core runs it.
func New() driver.Plugin[Config, TaskConfig] { return pluginOf(newDriver) }

func pluginOf(instance func() *pythonDriver) driver.Plugin[Config, TaskConfig] {
	return driver.Plugin[Config, TaskConfig]{
		Name:    "python",
		Summary: "runs Python programs, each with the interpreter and the packages it requires",
		New: func(c Config, logger hclog.Logger) (driver.Instance[TaskConfig], error) {
			d := instance()
			d.logger = logger
			return d, d.configure(c)
		},
		Commands: []plugin.Command{constraintCommand()},
	}
}

// DefaultUser is the configuration's.
func (d *pythonDriver) DefaultUser() string { return d.current().config.DefaultUser }

// configure has no effect beyond this process.
func (d *pythonDriver) configure(c Config) error {
	if err := validate(&c); err != nil {
		return err
	}
	dir, err := cacheDir(c.CacheDir)
	if err != nil {
		return err
	}
	var users *environment.Users
	var take func(context.Context, func()) (*environment.Builder, error)
	var as *syscall.Credential // who asks programs what they are
	if os.Geteuid() == 0 {
		if users, err = buildUsers(&c); err != nil {
			return err
		}
		take = users.Take
		as = &syscall.Credential{Uid: environment.Prober, Gid: environment.Prober}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setup = &setup{
		config: c, users: users,
		finder: &interpreter.Finder{Globs: c.Interpreters, As: as},
		installers: &installerFinder{asking: make(chan struct{}, 1), logger: d.logger, find: func(ctx context.Context, found []interpreter.Interpreter) (install.Installer, error) {
			return install.Find(ctx, c.Installer, c.UV, as, found)
		}},
		cache: environment.Open(environment.Config{
			Dir: dir, MaxSize: c.CacheMaxSize.Bytes(), MaxAge: c.CacheMaxAge.Duration(), Builders: take,
			Patience: 5 * time.Minute,
			Log:      func(format string, args ...any) { d.logger.Info(fmt.Sprintf(format, args...)) },
		}),
	}
	return nil
}

// current is the configuration of now; Nomad calls SetConfig before all else.
func (d *pythonDriver) current() *setup {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.setup
}

func cacheDir(configured string) (string, error) {
	if configured != "" {
		if !filepath.IsAbs(configured) {
			return "", fmt.Errorf("cache_dir %q is not absolute: write it from /, such as \"/var/cache/outrider/python\"", configured)
		}
		return filepath.Clean(configured), nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/outrider/python", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache_dir is not set, and the agent's user has no home directory for a default: set it in the plugin's config")
	}
	return filepath.Join(dir, "outrider", "python"), nil
}
