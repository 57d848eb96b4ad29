// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// environment returns one in which all requirements are installed, from the cache or new. The caller releases it.
func (d *instance) environment(
	ctx context.Context, r request, files taskFiles, python install.Python, required *requirement.Set,
) (*environment.Environment, error) {
	ctx, cancel := context.WithTimeout(ctx, d.config.BuildTimeout.Duration())
	defer cancel()
	src, err := newSources(ctx, &d.config, &r.Config, files, required)
	if err != nil {
		return nil, err
	}
	uv, err := d.uv.Find(ctx)
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
		spec.Fresh = time.Minute // a task that fails and is started again every few seconds must not build all the time
	}
	spec.Waiting = func() { r.Event("Environment: waiting for another task that builds the same one") }
	var begun time.Time
	spec.Build = func(ctx context.Context, dir, scratch string) error {
		begun = time.Now()
		r.Event("Environment: not in the cache, building it with %s for %s", uv, python)
		req := install.Request{
			Python: python, Requirements: required, Netrc: src.netrc, Dir: dir, Work: scratch,
			As: d.builder, MaxSize: d.config.CacheMaxSize.Bytes(),
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
	env, err := d.cache.Get(ctx, spec)
	if err != nil {
		return nil, err
	}
	if env.Hit {
		r.Event("Environment %s: cache hit", env.ID)
		return env, nil
	}
	d.grown.Store(true) // the next fingerprint tidies the cache
	r.Event("Environment %s: built in %.1f s, %.1f MB", env.ID, time.Since(begun).Seconds(), float64(env.Size)/1e6)
	return env, nil
}

// startError is the error that Nomad shows. It is recoverable where a later start, or one on another node, may succeed;
// Nomad looks for that in the error itself and not in what it wraps (plugins/drivers/server.go). ctx is the plugin's
// own, which ends with it.
func startError(ctx context.Context, err error, limit time.Duration) error {
	var may interface{ Temporary() bool }
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	temporary := full || errors.As(err, &may) && may.Temporary()
	var failed *install.Error
	switch {
	case full:
		err = fmt.Errorf("the disk of the cache is full: free some space, or lower cache_max_size: %w", err)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		err = fmt.Errorf("failed to build the environment within %s (build_timeout): %w", limit, err)
	case errors.As(err, &failed):
		err = fmt.Errorf("failed to build the environment: %w", err)
	}
	if temporary {
		return structs.NewRecoverableError(err, true)
	}
	return err
}

// format changes with the way in which environments are built, so that older ones are not used.
const format = 8

// environmentKey is what an environment depends on. Two environments that may differ have different keys. secret has
// all of it, with the passwords of URLs; text is what the operator sees.
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
