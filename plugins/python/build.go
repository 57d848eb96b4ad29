package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// quiet is how long a build says nothing among the task's events, and longer each time:
// Nomad keeps ten of a task.
const quiet = 20 * time.Second

// environment returns one in which everything that is required is installed, from the
// cache or new. The caller releases it.
func (d *pythonDriver) environment(ctx context.Context, now *setup, r request, files taskFiles, found []interpreter.Interpreter, python interpreter.Interpreter, required *requirement.Set) (*environment.Environment, error) {
	c := &now.config
	installer, err := d.installerFor(ctx, found)
	if err != nil {
		return nil, err
	}
	if required.UVLock != nil && installer.Name != "uv" {
		return nil, fmt.Errorf("lock %q needs uv, which this node has not: ask for nodes with constraint { attribute = \"${attr.driver.python.uv.version}\" operator = \"is_set\" }, or export the lock as pylock.toml", r.Config.Lock)
	}
	ctx, cancel := context.WithTimeout(ctx, c.BuildTimeout.Duration())
	defer cancel()
	src, err := newSources(ctx, c, &r.Config, files, required)
	if err != nil {
		return nil, err
	}
	key := environmentKey(python, installer, required, src, c.AllowSdists)
	spec := environment.Spec{Key: key.text, Secret: key.secret}
	if !required.Hashed && required.UVLock == nil {
		spec.Fresh = c.RefreshAfter.Duration()
	}
	spec.Waiting = func() { r.Event("Environment: waiting for another task that builds the same one") }
	var built *install.Result
	spec.Build = func(ctx context.Context, dir, final, scratch, downloads string) error {
		r.Event("Environment: not in the cache, building it with %s %s for %s", installer.Name, installer.Version, inWords(python))
		say := newProgress(r.Event)
		defer say.stop()
		req := install.Request{
			Python: python, Requirements: required, AllowedHosts: c.AllowedHosts, AllowSdists: c.AllowSdists,
			Dir: dir, Final: final, Work: scratch, Downloads: downloads, As: now.builder,
			MaxSize: c.CacheMaxSize.Bytes(), Progress: say.hear,
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
	}
	return env, nil
}

func packages(n int) string {
	if n == 1 {
		return "1 package"
	}
	return fmt.Sprintf("%d packages", n)
}

func inWords(p interpreter.Interpreter) string {
	name := p.Implementation
	switch name {
	case "cpython":
		name = "CPython"
	case "pypy":
		name = "PyPy"
	}
	return name + " " + p.Version
}

func roughly(d time.Duration) string {
	if d < 48*time.Hour {
		return fmt.Sprintf("%.0f hours", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

// progress tells now and then what a long build is at.
type progress struct {
	event func(string, ...any)
	timer *time.Timer

	mu   sync.Mutex
	wait time.Duration // until it tells again
	last string
	over bool
}

func newProgress(event func(string, ...any)) *progress {
	p := &progress{event: event, wait: quiet}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(p.wait, p.tell)
	return p
}

func (p *progress) hear(words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = words
}

func (p *progress) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if p.last != "" {
		p.event("Environment: still building: %s", p.last)
	}
	p.wait *= 2
	p.timer.Reset(p.wait)
}

func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
}

// made changes when environments are made in another way, so that those of before are not used.
const made = 1

// key is what an environment depends on.
type key struct{ text, secret string }

// environmentKey has everything in it that makes another environment. It is shown to
// the operator, so that what may have passwords in it is apart.
func environmentKey(python interpreter.Interpreter, i install.Installer, required *requirement.Set, src *sources, sdists bool) key {
	var t, secret strings.Builder
	line := func(name string, values ...any) {
		fmt.Fprintf(&t, "%s %s\n", name, strings.TrimSuffix(fmt.Sprintln(values...), "\n"))
	}
	line("python", python.Implementation, python.Version, python.Path, python.Real, python.File.Inode, python.File.Size, python.File.ModTime)
	line("build", fmt.Sprintf("%q", python.Full), python.ABI, python.Platform, python.Libc)
	line("installer", i.Name, i.Version, made)
	line("source-distributions", sdists)
	line("locked", required.Hashed, required.Complete)
	for _, l := range required.Lines {
		line("require", redact(l))
	}
	for _, l := range required.Constraints {
		line("constrain", redact(l))
	}
	if u := required.UVLock; u != nil {
		line("uv.lock", digest(u.Lock), digest(u.Project))
	}
	for _, s := range src.describe(required.Hashed) {
		line("from", redact(s))
		fmt.Fprintln(&secret, s)
	}
	for _, l := range append(required.Lines, required.Constraints...) {
		fmt.Fprintln(&secret, l)
	}
	return key{t.String(), secret.String()}
}

// redact takes the user and the password out of the URLs of a line.
func redact(line string) string {
	for from := 0; ; {
		i := strings.Index(line[from:], "://")
		if i < 0 {
			return line
		}
		start := from + i + 3
		end := start + len(line[start:])
		if j := strings.IndexAny(line[start:], "/ ?#"); j >= 0 {
			end = start + j
		}
		if at := strings.LastIndex(line[start:end], "@"); at >= 0 {
			line = line[:start] + "…" + line[start+at:]
		}
		from = start
	}
}
