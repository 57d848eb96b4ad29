//go:build mage

// Outrider: small plugins for HashiCorp Nomad, and a lab that runs them. Start with: mage lab:up
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/magefile/mage/mg"

	"github.com/outrider-dev/outrider/lab"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/check"
)

// Lab is a Nomad agent of this checkout with every plugin loaded.
type Lab mg.Namespace

// Starts Nomad with every plugin, or brings the running lab up to date (-usb=sim: with a simulated USB stick).
func (Lab) Up(ctx context.Context, runtime, usb *string) error {
	return withLab(runtime, func(l *lab.Lab) error { return l.Up(ctx, value(usb)) })
}

// Shows the agent, the plugins with version and health, and the jobs.
func (Lab) Status(ctx context.Context) error {
	return withLab(nil, func(l *lab.Lab) error { return l.Status(ctx) })
}

// Runs a job file in the lab and shows its output.
func (Lab) Run(ctx context.Context, job string) error {
	return withLab(nil, func(l *lab.Lab) error { return l.Run(ctx, job) })
}

// Follows the agent's log.
func (Lab) Logs(ctx context.Context) error {
	return withLab(nil, func(l *lab.Lab) error { return l.Logs(ctx) })
}

// Opens a shell where the tasks run, with NOMAD_ADDR set.
func (Lab) Shell(ctx context.Context) error {
	return withLab(nil, func(l *lab.Lab) error { return l.Shell(ctx) })
}

// Builds the plugins anew (or one: -plugin=NAME) and restarts the agent; tasks live on.
func (Lab) Reload(ctx context.Context, plugin *string) error {
	return withLab(nil, func(l *lab.Lab) error { return l.Reload(ctx, value(plugin)) })
}

// Boots a VM with a kernel and USB ports of its own, Nomad in it, and opens a shell there.
func (Lab) VM(ctx context.Context) error {
	return withLab(nil, func(l *lab.Lab) error { return l.VM(ctx) })
}

// Stops the jobs and the agent, and removes everything of the lab.
func (Lab) Down(ctx context.Context) error {
	return withLab(nil, func(l *lab.Lab) error { return l.Down(ctx) })
}

func withLab(runtime *string, do func(*lab.Lab) error) error {
	l, err := lab.New(value(runtime))
	if err != nil {
		return err
	}
	return do(l)
}

// value is that of a flag, empty where it was not given.
func value(flag *string) string {
	if flag == nil {
		return ""
	}
	return *flag
}

// Builds every plugin into bin/, with the supervisor embedded.
func Build(ctx context.Context) error {
	b := build.Builder{Root: "."}
	paths, err := b.All(ctx)
	for _, p := range paths {
		fmt.Println(p)
	}
	if why := b.Libusb(ctx); why != nil && err == nil {
		fmt.Fprintln(os.Stderr, "without libusb:", why)
	}
	return err
}

// Checks formatting, and runs go vet and golangci-lint over every module.
func Lint(ctx context.Context) error { return check.Lint(ctx, ".") }

// Runs the unit tests of every module, then the end-to-end tests on a real agent.
func Test(ctx context.Context) error {
	mg.SerialCtxDeps(ctx, Lint, Build)
	return check.Test(ctx, ".")
}

// Compares exec-lite with raw_exec, and python with the same by hand, and prints the ratios.
func Bench(ctx context.Context) error {
	mg.CtxDeps(ctx, Build)
	return run(ctx, "./lab/bench")
}

// Aliases give a target the name of its plugin, which no Go method can have.
var Aliases = map[string]any{"demo:exec-lite": Demo.ExecLite}

// Demo shows one plugin in under a minute.
type Demo mg.Namespace

// Shows exec-lite's processes while tasks start and the plugin is killed.
func (Demo) ExecLite(ctx context.Context) error { return run(ctx, "./lab/demo/exec-lite") }

// Shows Python programs: a page, an environment that is built and then found in the cache, an exception.
func (Demo) Python(ctx context.Context) error { return run(ctx, "./lab/demo/python") }

// Shows a USB stick that is plugged, used, unplugged and plugged again (-id=10c4:ea60: a real one).
func (Demo) USB(ctx context.Context, id *string) error {
	return run(ctx, "./lab/demo/usb", "-id="+value(id))
}

// run runs a program of this repository on the caller's terminal.
func run(ctx context.Context, pkg string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", pkg}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("failed to run %s: %w", pkg, err)
	}
	return nil
}
