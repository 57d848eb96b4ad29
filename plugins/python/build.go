package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// environment returns one in which everything that is required is installed, from the
// cache or new. The caller releases it.
func (d *pythonDriver) environment(ctx context.Context, now *setup, r request, files taskFiles, found []interpreter.Interpreter, python interpreter.Interpreter, required *requirement.Set) (*environment.Environment, error) {
	c := &now.config
	installer, err := now.installers.get(ctx, found)
	if err != nil {
		return nil, err
	}
	if required.UVLock != nil && installer.Name != "uv" {
		why := ""
		if installer.NoUV != nil {
			why = " (" + installer.NoUV.Error() + ")"
		}
		return nil, fmt.Errorf("lock %q needs uv, which this node has not%s: ask for nodes with constraint { attribute = \"${attr.driver.python.uv.version}\" operator = \"is_set\" }, or export the lock as pylock.toml", r.Config.Lock, why)
	}
	limit := c.BuildTimeout.Duration()
	looking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	src, err := newSources(looking, c, &r.Config, files, required)
	if err != nil {
		return nil, err
	}
	key := environmentKey(python, installer, required, src, c.AllowSdists)
	spec := environment.Spec{Key: key.text, Secret: key.secret, Interpreter: python.Path, Limit: limit}
	spec.Downloads = !c.AllowSdists // a package's code could change what the next environment is made of
	if !required.Hashed && required.UVLock == nil {
		spec.Fresh = c.RefreshAfter.Duration()
	}
	if r.Config.Refresh {
		spec.Since = time.Now()
	}
	spec.Waiting = func() { r.Event("Environment: waiting for another task that builds the same one") }
	spec.Queued = func() { r.Event("Environment: waiting for other builds to end") }
	var built *install.Result
	doing := "not in the cache, building it"
	spec.Outdated = func(age time.Duration) { doing = "refreshing it, which is " + roughly(age) + " old," }
	spec.Build = func(ctx context.Context, as *environment.Builder, dir, final, scratch, downloads string) error {
		r.Event("Environment: %s with %s for %s %s", doing, installer.Tool(python), python.Name(), python.Version)
		say := newProgress(r.Event)
		defer say.stop()
		req := install.Request{
			Python: python, Requirements: required, AllowedHosts: c.AllowedHosts, AllowSdists: c.AllowSdists,
			Dir: dir, Final: final, Work: scratch, Downloads: downloads,
			MaxSize: c.CacheMaxSize.Bytes(), Progress: say.hear, Downloaded: say.download, Refresh: r.Config.Refresh,
		}
		if as != nil {
			req.As = &syscall.Credential{Uid: as.UID, Gid: as.GID}
		}
		var err error
		if req.Indexes, err = src.into(ctx, scratch); err != nil {
			return err
		}
		if required.UVLock != nil {
			if req.Requirements, err = installer.Export(ctx, req); err != nil {
				return err
			}
			if !c.JobIndexes && len(req.Requirements.URLs) > 0 {
				return errNoJobIndexes
			}
		}
		built, err = installer.Install(ctx, req)
		return err
	}
	env, err := now.cache.Get(ctx, spec)
	if err != nil {
		return nil, err
	}
	switch {
	case env.Stale != nil:
		r.Event("Environment %s: cache hit, %s old, since it can't be refreshed: %v", env.ID, roughly(env.Age), env.Stale)
	case env.Hit:
		r.Event("Environment %s: cache hit", env.ID)
	case built != nil:
		d.tidySoon() // the cache has grown
		r.Event("Environment %s: built in %.1f s, %s, %.1f MB", env.ID, built.Took.Seconds(), packages(len(built.Packages)), float64(env.Size)/1e6)
		if len(built.Warnings) > 0 {
			r.Event("Environment %s: %s warns: %.500s", env.ID, installer.Tool(python), strings.Join(built.Warnings, "; "))
		}
	}
	return env, nil
}

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
