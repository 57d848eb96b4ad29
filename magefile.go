//go:build mage

// Outrider: plugins for HashiCorp Nomad, and a lab that runs them. Start with: go tool mage lab:up
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/magefile/mage/mg"

	"github.com/outrider-dev/outrider/lab"
	"github.com/outrider-dev/outrider/lab/check"
)

// init refuses what mage would refuse only after it has run the targets before it.
func init() {
	names := append(slices.Collect(maps.Keys(Aliases)), "build", "lint", "test", "bench")
	if err := lab.CheckTargets(os.Args[1:], names, Lab{}, Demo{}); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(2)
	}
}

// Lab is a Nomad agent of this checkout with every plugin loaded.
type Lab mg.Namespace

// Starts Nomad with every plugin, or updates the lab (-usb=sim: with a stick).
func (Lab) Up(ctx context.Context, runtime, usb *string) error {
	return withLab(ctx, runtime, func(ctx context.Context, l *lab.Lab) error { return l.Up(ctx, value(usb)) })
}

// Shows the agent, the plugins with version and health, and the jobs.
func (Lab) Status(ctx context.Context) error {
	return withLab(ctx, nil, func(ctx context.Context, l *lab.Lab) error { return l.Status(ctx) })
}

// Runs a job file and shows its output; starts the lab if none runs.
func (Lab) Run(ctx context.Context, job string) error {
	return withLab(ctx, nil, func(ctx context.Context, l *lab.Lab) error { return l.Run(ctx, job) })
}

// Follows the agent's log, or what a job's tasks write (-job=NAME).
func (Lab) Logs(ctx context.Context, job *string) error {
	return withLab(ctx, nil, func(ctx context.Context, l *lab.Lab) error { return l.Logs(ctx, value(job)) })
}

// Stops a job.
func (Lab) Stop(ctx context.Context, job string) error {
	return withLab(ctx, nil, func(ctx context.Context, l *lab.Lab) error { return l.Stop(ctx, job) })
}

// Opens a shell where the tasks run, with nomad; commands may come from a pipe.
func (Lab) Shell(ctx context.Context) error {
	return withLab(ctx, nil, func(ctx context.Context, l *lab.Lab) error { return l.Shell(ctx) })
}

// Builds the plugins (or one: -plugin=NAME) and restarts the agent; tasks live on.
func (Lab) Reload(ctx context.Context, plugin *string) error {
	return withLab(ctx, nil, func(ctx context.Context, l *lab.Lab) error { return l.Reload(ctx, value(plugin)) })
}

// Boots a VM with a kernel of its own and Nomad in it, and opens a shell there.
func (Lab) VM(ctx context.Context) error {
	return withLab(ctx, nil, func(ctx context.Context, l *lab.Lab) error { return l.VM(ctx) })
}

// Stops jobs and agent, and removes all of the lab but what the next one wants.
func (Lab) Down(ctx context.Context) error {
	return withLab(ctx, nil, func(ctx context.Context, l *lab.Lab) error { return l.Down(ctx) })
}

// Removes also what lab:down keeps for the next lab: the image and the cache.
func (Lab) Purge(ctx context.Context) error {
	return withLab(ctx, nil, func(ctx context.Context, l *lab.Lab) error { return l.Purge(ctx) })
}

func withLab(ctx context.Context, runtime *string, do func(context.Context, *lab.Lab) error) error {
	l, err := lab.New(value(runtime))
	if err != nil {
		return err
	}
	return l.Command(ctx, func(ctx context.Context) error { return do(ctx, l) })
}

// value is that of a flag, empty where it was not given.
func value(flag *string) string {
	if flag == nil {
		return ""
	}
	return *flag
}

// Builds every plugin into bin/, with the supervisor embedded.
func Build(ctx context.Context) error { return lab.Build(ctx) }

// Checks formatting, and runs go vet and golangci-lint over every module.
func Lint(ctx context.Context) error { return check.Lint(ctx, ".") }

// Runs the unit tests of every module, then the end-to-end tests on a real agent.
func Test(ctx context.Context) error {
	mg.SerialCtxDeps(ctx, Lint, lab.BuildPlugins) // ^C is mage's, for the tests
	return check.Test(ctx, ".")
}

// Compares exec-lite with raw_exec, and python with the same by hand, by ratios.
func Bench(ctx context.Context) error {
	mg.CtxDeps(ctx, Build)
	return lab.RunProgram(ctx, "./lab/bench")
}

// Aliases give a target the name of its plugin, which no Go method can have.
var Aliases = map[string]any{"demo:exec-lite": Demo.ExecLite}

// Demo shows one plugin in under a minute.
type Demo mg.Namespace

// demo:exec-lite shows its processes while tasks start and the plugin is killed.
func (Demo) ExecLite(ctx context.Context) error { return lab.RunProgram(ctx, "./lab/demo/exec-lite") }

// Shows Python programs: a page, an environment built, then cached; an exception.
func (Demo) Python(ctx context.Context) error { return lab.RunProgram(ctx, "./lab/demo/python") }

// Shows a USB stick plugged, used and unplugged (-id=10c4:ea60: a real one).
func (Demo) USB(ctx context.Context, id *string) error {
	return lab.RunProgram(ctx, "./lab/demo/usb", "-id="+value(id))
}
