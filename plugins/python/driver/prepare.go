// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// environment returns an environment with all requirements installed, from the cache or newly built.
func (d *instance) environment(
	ctx context.Context, r request, cmd *task.Command, files taskFiles, uv install.Installer, python install.Python,
	required *requirement.Set,
) (*environment.Environment, error) {
	src, err := newSources(ctx, &d.config, &r.Config, files, required)
	if err != nil {
		return nil, err
	}
	key, secret, err := environmentKey(python, uv, required, src, r.Config.Refresh)
	if err != nil {
		return nil, err
	}
	spec := environment.Spec{Key: key, Secret: secret, Interpreter: python.Path}
	if !required.Hashed && required.UVLock == nil {
		spec.Fresh = d.config.RefreshAfter.Duration()
	}
	if r.Config.Refresh {
		spec.Fresh = time.Minute // a task that fails and restarts every few seconds must not cause a build each time
	}
	spec.Build = func(ctx context.Context, dir, scratch string) error {
		req := install.Request{
			Python: python, Requirements: required, Netrc: src.netrc, Dir: dir, Work: scratch, As: d.builder,
			MaxSize: d.config.CacheMaxSize.Bytes(),
		}
		var err error
		if req.Sources, err = src.into(ctx, scratch); err != nil {
			return err
		}
		if required.UVLock != nil {
			if req.Requirements, err = uv.Export(ctx, req); err != nil {
				return err
			}
			if !d.config.JobIndexes && req.Requirements.Names {
				return requirement.ErrJobIndexes
			}
		}
		return uv.Install(ctx, req)
	}
	return d.get(ctx, r, cmd, fmt.Sprintf("with %s for %s", uv, python), spec)
}

// get returns the environment of spec, from the cache or newly built. The cache keeps it until the task ends.
func (d *instance) get(
	ctx context.Context, r request, cmd *task.Command, name string, spec environment.Spec,
) (*environment.Environment, error) {
	begun := time.Now()
	build := spec.Build
	spec.Build = func(ctx context.Context, dir, scratch string) error {
		begun = time.Now()
		r.Event("Environment: not in the cache, building it %s", name)
		return build(ctx, dir, scratch)
	}
	spec.Waiting = func() { r.Event("Environment: waiting for another task that builds the same environment") }
	env, err := d.cache.Get(ctx, spec)
	if err != nil {
		return nil, err
	}
	r.Finally(env.Release)
	if err := env.Acquire(r.StateDir()); err != nil {
		return nil, err
	}
	if cmd.User == nil && os.Geteuid() == 0 || cmd.User != nil && cmd.User.UID == 0 {
		// file modes do not stop root from writing, but a read-only mount does
		cmd.Mounts = append(cmd.Mounts, task.Mount{Source: env.Dir, Target: env.Dir, ReadOnly: true})
	}
	if env.Hit {
		r.Event("Environment %s: cache hit", env.ID)
	} else {
		r.Event("Environment %s: built in %.1f s, %.1f MB", env.ID, time.Since(begun).Seconds(), megabytes(env.Size))
	}
	return env, nil
}

// startError returns the error that Nomad shows. If a later start may succeed, here or on another node, the outermost
// error is a recoverable one, because Nomad checks no other (plugins/drivers/server.go). ctx ends with the plugin.
func startError(ctx context.Context, err error, limit time.Duration) error {
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	var failed *install.Error
	temporary := errors.As(err, &failed) && failed.Temporary || full || errors.Is(err, context.DeadlineExceeded)
	switch {
	case full:
		err = fmt.Errorf("the cache's disk is full: %w; free some space, or lower cache_max_size", err)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		err = fmt.Errorf("failed to build the environment within %s (build_timeout): %w", limit, err)
	case failed != nil:
		err = fmt.Errorf("failed to build the environment: %w", err)
	}
	if temporary {
		return structs.NewRecoverableError(err, true)
	}
	return err
}

// format is a part of all keys. Increase it to build environments differently: older environments are then not used.
const format = 8

// environmentKey describes all inputs of an environment: two environments that may differ have different keys. text is
// for the operator, without the passwords of URLs. secret is text plus the passwords and the task's netrc file.
func environmentKey(
	python install.Python, uv install.Installer, required *requirement.Set, src *sources, refresh bool,
) (text, secret string, err error) {
	all, err := json.Marshal(struct {
		Format       int
		Python       install.Python
		UV           install.Installer
		Requirements *requirement.Set
		Sources      *sources
		Refresh      bool
	}{format, python, uv, required, src, refresh})
	if err != nil {
		return "", "", fmt.Errorf("failed to describe the environment: %w", err)
	}
	return requirement.Redact(string(all)), string(all) + string(src.netrc), nil
}
