// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
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
	limit := d.config.BuildTimeout.Duration()
	looking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	src, err := newSources(looking, &d.config, &r.Config, files, required)
	if err != nil {
		return nil, err
	}
	uv, err := d.uv.Find(ctx)
	if err != nil {
		return nil, err
	}
	key, secret, err := environmentKey(python, uv, required, src, refreshing(&r.Config, time.Now()))
	if err != nil {
		return nil, err
	}
	spec := environment.Spec{Key: key, Secret: secret, Interpreter: python.Path, Limit: limit}
	if !required.Hashed && required.UVLock == nil {
		spec.Fresh = d.config.RefreshAfter.Duration()
	}
	spec.Waiting = func() { r.Event("Environment: waiting for another task that builds the same one") }
	doing := "not in the cache, building it"
	spec.Outdated = func(age time.Duration) {
		doing = fmt.Sprintf("refreshing it, which is %s old,", age.Round(time.Minute))
	}
	var built *install.Result
	spec.Build = func(ctx context.Context, as *environment.Builder, dir, scratch string) error {
		r.Event("Environment: %s with %s for %s", doing, uv, python)
		var last atomic.Value // line of uv
		last.Store("no line of uv yet")
		defer every(quiet, func() { r.Event("Environment: still building, %.200s", last.Load()) })()
		req := install.Request{
			Python: python, Requirements: required, Netrc: src.netrc, Dir: dir, Work: scratch,
			MaxSize: d.config.CacheMaxSize.Bytes(), Progress: func(line string) { last.Store(line) },
		}
		if as != nil {
			req.As = &syscall.Credential{Uid: as.UID, Gid: as.GID}
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
		built, err = uv.Install(ctx, req)
		return err
	}
	spec.Warnings = func() []string { return built.Warnings }
	env, err := d.cache.Get(ctx, spec)
	if err != nil {
		return nil, err
	}
	switch {
	case env.Hit:
		r.Event("Environment %s: cache hit", env.ID)
	case built != nil:
		d.grown.Store(true) // the next fingerprint tidies the cache
		r.Event("Environment %s: built in %.1f s, %s, %.1f MB", env.ID, built.Took.Seconds(), packages(built.Packages),
			float64(env.Size)/1e6)
	}
	if len(env.Warnings) > 0 {
		r.Event("Environment %s: %s warns: %.500s", env.ID, uv, strings.Join(env.Warnings, "; "))
	}
	return env, nil
}

// quiet is the time until the first event of a build that goes on.
const quiet = 20 * time.Second

// every calls f after a time, and then after twice the time each time, since Nomad keeps ten events of a task. The
// function that it returns ends that.
func every(wait time.Duration, f func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		for ; ; wait *= 2 {
			select {
			case <-done:
				return
			case <-time.After(wait):
				f()
			}
		}
	}()
	return func() { close(done) }
}

func packages(n int) string {
	if n == 1 {
		return "1 package"
	}
	return fmt.Sprintf("%d packages", n)
}

// startError is the error that Nomad shows. It is recoverable where a later start, or one on another node, may succeed;
// Nomad looks for that in the error itself and not in what it wraps (plugins/drivers/server.go). ctx is the plugin's
// own, which ends with it.
func startError(ctx context.Context, err error, limit time.Duration) error {
	var may interface{ Temporary() bool }
	temporary := errors.As(err, &may) && may.Temporary()
	var failed *install.Error
	of := ""
	if errors.As(err, &failed) {
		of = failed.LastLines()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		err = fmt.Errorf("failed to build the environment within %s (build_timeout)%s", limit, of)
	case failed != nil:
		err = fmt.Errorf("failed to build the environment: %w", err)
	}
	if temporary {
		return structs.NewRecoverableError(err, true)
	}
	return err
}
