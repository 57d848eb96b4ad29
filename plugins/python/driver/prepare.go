// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// order describes an environment to get.
type order struct {
	python    interpreter.Interpreter
	other     bool // python is not the best that fits
	installer install.Installer
	required  *requirement.Set
	from      *sources
	key       key
	limit     time.Duration
}

// environmentOfAny returns an environment in which all requirements are installed, and the interpreter it is for: the
// best of the fitting ones for which they can be installed. The caller releases it.
func (d *instance) environmentOfAny(ctx context.Context, r request, files taskFiles,
	fitting []interpreter.Interpreter, required *requirement.Set) (*environment.Environment,
	interpreter.Interpreter, error) {
	none := interpreter.Interpreter{}
	c := &d.config
	limit := c.BuildTimeout.Duration()
	looking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	src, err := newSources(looking, c, &r.Config, files, required)
	if err != nil {
		return nil, none, err
	}
	installer, err := d.uv.Find(ctx)
	if err != nil {
		return nil, none, err
	}
	try := attempts{unsuited: &d.unsuited, again: c.RefreshAfter.Duration(), anew: r.Config.Refresh}
	begun := time.Now()
	refresh := refreshing(&r.Config, begun)
	for i, python := range fitting {
		key := environmentKey(python, installer, required, src, refresh)
		left := limit
		if i > 0 {
			left -= time.Since(begun)
		}
		if left <= 0 || try.skips(key, i == len(fitting)-1) {
			continue
		}
		env, err := d.environment(ctx, r, order{python, i > 0, installer, required, src, key, left})
		if err == nil {
			try.succeeded()
			return env, python, nil
		}
		if !try.failed(key, python, err) {
			if try.first != nil && time.Since(begun) >= limit { // only the rest of the time was left for it
				break
			}
			return nil, none, err
		}
		if i == 0 && len(fitting) > 1 {
			r.Event("Environment: the node's other interpreters are tried, as there is none for %s: %.300s", full(python), err)
		}
	}
	return nil, none, try.err()
}

// environment gets one, from the cache or new.
func (d *instance) environment(ctx context.Context, r request, o order) (*environment.Environment, error) {
	c, python, installer, required, src := &d.config, o.python, o.installer, o.required, o.from
	spec := environment.Spec{Key: o.key.text, Secret: o.key.secret, Interpreter: python.Path, Limit: o.limit}
	if !required.Hashed && required.UVLock == nil {
		spec.Fresh = c.RefreshAfter.Duration()
	}
	spec.Waiting = func() { r.Event("Environment: waiting for another task that builds the same one") }
	spec.Queued = func() { r.Event("Environment: waiting for other builds to end") }
	var built *install.Result
	doing := "not in the cache, building it"
	spec.Outdated = func(age time.Duration) { doing = "refreshing it, which is " + roughly(age) + " old," }
	spec.Build = func(ctx context.Context, as *environment.Builder, dir, scratch, downloads string) error {
		if !o.other {
			r.Event("Environment: %s with %s for %s", doing, installer, full(python))
		}
		say := newProgress(r.Event)
		defer say.stop()
		req := install.Request{
			Python: python, Requirements: required, Netrc: src.netrc,
			Dir: dir, Work: scratch, Downloads: downloads,
			MaxSize: c.CacheMaxSize.Bytes(), Progress: say.hear, Refresh: r.Config.Refresh,
		}
		if as != nil {
			req.As = &syscall.Credential{Uid: as.UID, Gid: as.GID}
		}
		var err error
		if req.Sources, err = src.into(ctx, scratch); err != nil {
			return err
		}
		if required.UVLock != nil {
			if req.Requirements, err = installer.Export(ctx, req); err != nil {
				return err
			}
			if !c.JobIndexes && req.Requirements.Names {
				return index.ErrJobIndexes
			}
		}
		built, err = installer.Install(ctx, req)
		return err
	}
	spec.Warnings = func() []string { return built.Warnings }
	env, err := d.cache.Get(ctx, spec)
	if err != nil {
		return nil, err
	}
	which := env.ID
	if o.other {
		which += " for " + full(python)
	}
	switch {
	case env.Hit:
		r.Event("Environment %s: cache hit", which)
	case built != nil:
		d.grown.Store(true) // the next fingerprint tidies the cache
		r.Event("Environment %s: built in %.1f s, %s, %.1f MB", which, built.Took.Seconds(), packages(len(built.Packages)),
			float64(env.Size)/1e6)
	}
	if len(env.Warnings) > 0 {
		r.Event("Environment %s: %s warns: %.500s", env.ID, installer, strings.Join(env.Warnings, "; "))
	}
	return env, nil
}

// full is an interpreter with its name: "CPython 3.11.2".
func full(python interpreter.Interpreter) string { return python.Name() + " " + python.Version }

func packages(n int) string {
	if n == 1 {
		return "1 package"
	}
	return fmt.Sprintf("%d packages", n)
}

func roughly(d time.Duration) string {
	if d < 2*time.Hour {
		return fmt.Sprintf("%.0f minutes", d.Minutes())
	}
	if d < 48*time.Hour {
		return fmt.Sprintf("%.0f hours", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}
