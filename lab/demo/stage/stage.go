// Package stage is what the demos have in common: a Nomad agent of their own, which
// is gone at the end, and how they speak.
package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// Demo is one demo.
type Demo struct {
	Plugins map[string]string // its plugins by name ("exec-lite"), and their configuration
	OnHost  bool              // whatever LAB_RUNTIME says: it is about this machine's devices

	// Play is the demo itself. Everything is removed after it, whatever it returns.
	Play func(context.Context, agent.Agent) error
}

// Main plays it and ends the process.
func (d Demo) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func (d Demo) run(ctx context.Context) (err error) {
	start := time.Now()
	Say("Starting a Nomad agent of the demo's own")
	runtime, err := agent.ParseRuntime(os.Getenv("LAB_RUNTIME"))
	if err != nil {
		return err
	}
	if d.OnHost || runtime == agent.Auto && agent.DockerAnswers(ctx) != nil {
		runtime = agent.Host
	}
	dir, err := os.MkdirTemp("", "outrider-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // tasks may be of any user
		return err
	}
	plugins, err := d.build(ctx, runtime)
	if err != nil {
		return err
	}
	prog, err := nomad.Binary(ctx, func(f string, a ...any) { fmt.Printf("  "+f+"\n", a...) })
	if err != nil {
		return err
	}
	a, err := agent.Run(ctx, agent.Options{
		Dir: filepath.Join(dir, "a"), Runtime: runtime, Binary: prog.Path, Name: "demo", Plugins: plugins,
	})
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		cerr := a.Close(cctx)
		if cerr == nil {
			Say("The demo's agent, its tasks and its files are gone (%.0f s in all)", time.Since(start).Seconds())
		}
		err = errors.Join(err, cerr)
	}()
	return d.Play(ctx, a)
}

func (d Demo) build(ctx context.Context, r agent.Runtime) ([]agent.Plugin, error) {
	root, err := build.Root(".")
	if err != nil {
		return nil, err
	}
	b := build.Builder{Root: root}
	if r != agent.Host {
		b = b.ForContainer()
	}
	var plugins []agent.Plugin
	for name, config := range d.Plugins {
		paths, err := b.All(ctx, name)
		if err != nil {
			return nil, err
		}
		plugins = append(plugins, agent.Plugin{Binary: paths[0], Config: config})
	}
	return plugins, nil
}

// Say prints the title of an act.
func Say(format string, args ...any) { fmt.Printf("\n== %s\n", fmt.Sprintf(format, args...)) }

// Note prints a line within one.
func Note(format string, args ...any) { fmt.Printf("   %s\n", fmt.Sprintf(format, args...)) }

// Until asks again and again until it is done, at most for two minutes.
func Until(ctx context.Context, what string, done func() (bool, error)) error {
	return Within(ctx, 2*time.Minute, what, done)
}

// Within is Until with another limit.
func Within(ctx context.Context, limit time.Duration, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s: %w", what, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
