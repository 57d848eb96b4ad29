// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is the python driver. It runs a task's program with an interpreter, in an environment with the
// packages that the program requires.
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/install"
)

// Plugin returns the python driver.
func Plugin() driver.Plugin[Config, TaskConfig] {
	return driver.Plugin[Config, TaskConfig]{
		Name:    "python",
		Summary: "runs Python programs, each with the interpreter and the packages it requires",
		New: func(c Config, logger hclog.Logger) (driver.Instance[TaskConfig], error) {
			return newInstance(c, logger)
		},
		Commands: []plugin.Command{
			{Name: "cache", Help: "list or prune the environments of the cache",
				Run: func(ctx context.Context, args []string) error { return cacheCommand(ctx, args, os.Stdout) }},
		},
	}
}

// instance is the configured driver. Creating it has no effect outside of this process.
type instance struct {
	config  Config
	logger  hclog.Logger
	uv      *install.Finder
	cache   *environment.Cache
	builder *syscall.Credential // the user that runs builds; nil: this process's user

	tidying sync.Mutex // held during Tidy; always taken with TryLock, so nothing waits
}

var (
	_ driver.Fingerprinter = (*instance)(nil)
	_ driver.ExitReporter  = (*instance)(nil)
	_ driver.UserDefaulter = (*instance)(nil)
)

func newInstance(c Config, logger hclog.Logger) (*instance, error) {
	if err := validate(&c); err != nil {
		return nil, err
	}
	dir, err := cacheDir(c.CacheDir)
	if err != nil {
		return nil, err
	}
	c.CacheDir = dir
	d := &instance{config: c, logger: logger}
	cache := environment.Config{
		Dir: dir, MaxSize: c.CacheMaxSize.Bytes(), MaxAge: c.CacheMaxAge.Duration(),
		Log: func(format string, args ...any) { logger.Info(fmt.Sprintf(format, args...)) },
	}
	if os.Geteuid() == 0 {
		if d.builder, err = builder(&c); err != nil {
			return nil, err
		}
	}
	cache.Builder = d.builder
	d.cache = environment.Open(cache)
	d.uv = install.NewFinder(c.UV, c.Interpreters, d.builder)
	d.uv.Downloads = c.PythonInstall
	return d, nil
}

// DefaultUser implements driver.UserDefaulter.
func (d *instance) DefaultUser() string { return d.config.DefaultUser }

func cacheDir(configured string) (string, error) {
	if configured != "" {
		if !filepath.IsAbs(configured) {
			return "", fmt.Errorf("cache_dir %q is not absolute: begin it with /", configured)
		}
		return filepath.Clean(configured), nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/outrider/python", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("found no default for cache_dir: %w; set cache_dir in the plugin's config", err)
	}
	return filepath.Join(dir, "outrider", "python"), nil
}

// Fingerprint returns the node's interpreters. It is called periodically, so it also starts the tidying of the cache.
func (d *instance) Fingerprint(ctx context.Context) (map[string]*pstructs.Attribute, error) {
	uv, err := d.uv.Find(ctx)
	var failed *install.Error
	switch {
	case errors.As(err, &failed): // uv is installed but could not be run now: unhealthy, not undetected
		return nil, err
	case err != nil:
		return nil, driver.Undetected(err.Error())
	}
	found, err := d.uv.Pythons(ctx, "")
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, driver.Undetected(errNoPython.Error())
	}
	if err := checkExec(d.config.CacheDir); err != nil {
		return nil, err
	}
	all := map[string]*pstructs.Attribute{
		"versions":   pstructs.NewStringAttribute(versionsOf(found)),
		"default":    pstructs.NewStringAttribute(found[0].Version),
		"uv.version": pstructs.NewStringAttribute(uv.Version),
	}
	d.tidy(ctx)
	return all, nil
}

// checkExec returns an error if dir, or its nearest existing parent, is on a mount with noexec.
func checkExec(dir string) error {
	var fs unix.Statfs_t
	for unix.Statfs(dir, &fs) == unix.ENOENT && dir != "/" {
		dir = filepath.Dir(dir)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("cache_dir is on a noexec mount (%s), where no environment can run: choose another cache_dir", dir)
	}
	return nil
}

// tidy tidies the cache in the background, because a disk may be slow. It does nothing while a previous tidy runs.
func (d *instance) tidy(ctx context.Context) {
	if !d.tidying.TryLock() {
		return
	}
	go func() { // ends with ctx
		defer d.tidying.Unlock()
		if err := d.cache.Tidy(ctx); err != nil && ctx.Err() == nil {
			d.logger.Warn("failed to clean up the cache of environments", "error", err)
		}
	}()
}
