// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build mage

// To use: lab, demo. To develop: build, lint, test, bench, conformance, new. To maintain: the others.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/magefile/mage/mg"
	"github.com/magefile/mage/sh"

	"github.com/outrider-dev/outrider/lab"
	"github.com/outrider-dev/outrider/lab/check"
	"github.com/outrider-dev/outrider/lab/newplugin"
	"github.com/outrider-dev/outrider/lab/nix"
	"github.com/outrider-dev/outrider/lab/release"
)

// Lab is a Nomad agent of this checkout with every plugin loaded.
type Lab mg.Namespace

// Starts or updates Nomad (-usb=sim, -dataset=zfs-fuse, -remote=sim, -nodes=3).
func (Lab) Up(ctx context.Context, usb, dataset, remote *string, nodes *int) error {
	with := lab.With{USB: value(usb), Dataset: value(dataset), Remote: value(remote)}
	if nodes != nil {
		with.Nodes = *nodes
	}
	return withLab(ctx, func(ctx context.Context, l *lab.Lab) error { return l.Up(ctx, with) })
}

// Shows the agent, the plugins with version and health, and the jobs (-json).
func (Lab) Status(ctx context.Context, json *bool) error {
	return withLab(ctx, func(ctx context.Context, l *lab.Lab) error {
		if json != nil && *json {
			return l.StatusJSON(ctx)
		}
		return l.Status(ctx)
	})
}

// Runs a job file and shows its output; -watch: again at each save.
func (Lab) Run(ctx context.Context, job string, watch *bool) error {
	return withLab(ctx, func(ctx context.Context, l *lab.Lab) error {
		if watch != nil && *watch {
			return l.Watch(ctx, job)
		}
		return l.Run(ctx, job)
	})
}

// Follows the agent's log, or the output of a job's task (-job=NAME).
func (Lab) Logs(ctx context.Context, job *string) error {
	return withLab(ctx, func(ctx context.Context, l *lab.Lab) error { return l.Logs(ctx, value(job)) })
}

// Stops a job.
func (Lab) Stop(ctx context.Context, job string) error {
	return withLab(ctx, func(ctx context.Context, l *lab.Lab) error { return l.Stop(ctx, job) })
}

// Opens a shell where the tasks run, with nomad; accepts commands from a pipe.
func (Lab) Shell(ctx context.Context) error {
	return withLab(ctx, func(ctx context.Context, l *lab.Lab) error { return l.Shell(ctx) })
}

// Rebuilds the plugins and restarts the agent; tasks keep running.
func (Lab) Reload(ctx context.Context) error {
	return withLab(ctx, func(ctx context.Context, l *lab.Lab) error { return l.Reload(ctx) })
}

// Stops the lab and deletes it; keeps the image and the download cache.
func (Lab) Down(ctx context.Context) error {
	return withLab(ctx, func(ctx context.Context, l *lab.Lab) error { return l.Down(ctx) })
}

func withLab(ctx context.Context, do func(context.Context, *lab.Lab) error) error {
	l, err := lab.New()
	if err != nil {
		return err
	}
	return l.Command(ctx, func(ctx context.Context) error { return do(ctx, l) })
}

// value returns a flag's value, or an empty string if the flag was not given.
func value(flag *string) string {
	if flag == nil {
		return ""
	}
	return *flag
}

// Builds every plugin into bin/, with the supervisor embedded.
func Build(ctx context.Context) error { return lab.Build(ctx) }

// Runs golangci-lint over every module, actionlint, and shellcheck.
func Lint() error { return sh.RunV(".ci/lint") }

// Test runs the tests of the modules.
type Test mg.Namespace

// test runs all unit tests, and the end-to-end tests of the main paths.
func (Test) Main(ctx context.Context) error {
	mg.CtxDeps(ctx, lab.Build) // mage itself handles ^C during the tests
	return check.Test(ctx, ".")
}

// Runs every test, and short benchmarks.
func (Test) All(ctx context.Context) error {
	mg.CtxDeps(ctx, Build)
	tests := check.TestAll(ctx, ".")
	return errors.Join(tests, lab.RunProgram(ctx, "./lab/bench", "-quick"))
}

// Builds one module (plugins/usb) with its go.mod, runs its unit tests (-race).
func (Test) Module(ctx context.Context, module string, race *bool) error {
	mg.CtxDeps(ctx, lab.Build)
	return check.TestModule(ctx, ".", module, race != nil && *race)
}

// Benchmarks exec-lite, remote and python against the alternatives; writes ratios.
func Bench(ctx context.Context) error {
	mg.CtxDeps(ctx, Build)
	err := lab.RunProgram(ctx, "./lab/bench", "-json", "docs/benchmarks.json")
	// these benchmarks start confined programs, and compare with runc if it is installed
	return errors.Join(err, sh.RunV("go", "test", "./internal/core/launch", "-run=^$", "-bench=Start", "-v"))
}

// Runs the driver contract on a plugin's binary (-task='{"command": "SCRIPT"}').
func Conformance(ctx context.Context, plugin string, task, config *string) error {
	return lab.RunProgram(ctx, "./internal/core/cmd/conformance", "-task="+value(task), "-config="+value(config), plugin)
}

// Docs builds parts of the documentation.
type Docs mg.Namespace

// Renders the pictures in docs/images (needs asciinema, npm, chromium).
func (Docs) Pictures() error { return sh.RunV("lab/pictures/make") }

// Builds the web site of docs/ in dist/site.
func (Docs) Build() error { return sh.RunV(".ci/site", "--cleanDestinationDir") }

// Serves the web site of docs/ on http://localhost:1313, and follows changes.
func (Docs) Serve() error { return sh.RunV(".ci/site", "server") }

// New creates plugins from templates.
type New mg.Namespace

// Creates plugins/NAME, a task driver that builds, conforms and loads in the lab.
func (New) Driver(ctx context.Context, name string) error {
	return lab.NewPlugin(ctx, newplugin.Driver, name)
}

// Creates plugins/NAME: a device plugin that builds, conforms, loads in the lab.
func (New) Device(ctx context.Context, name string) error {
	return lab.NewPlugin(ctx, newplugin.Device, name)
}

// Release builds and verifies the published files of a plugin.
type Release mg.Namespace

// Builds zip, deb, rpm, SBOM and checksums in dist/ (-plugin=NAME: only of one).
func (Release) Build(ctx context.Context, plugin *string) error {
	return release.BuildCommand(ctx, release.Options{Root: ".", Plugin: value(plugin)})
}

// Builds the last commit again in a clone, and compares each byte with dist/.
func (Release) Verify(ctx context.Context, plugin *string) error {
	return release.VerifyCommand(ctx, release.Options{Root: ".", Plugin: value(plugin)})
}

// Nix maintains the flake.
type Nix mg.Namespace

// Updates the flake's hash of the Go packages that the plugins import.
func (Nix) Hash(ctx context.Context) error { return nix.UpdateHash(ctx, ".") }

// Aliases are target names that no Go method can have: a name with a hyphen, and the name of a namespace.
var Aliases = map[string]any{"demo:exec-lite": Demo.ExecLite, "test": Test.Main}

// Demo shows one plugin in under a minute.
type Demo mg.Namespace

// demo:exec-lite shows process trees, kill -9, exit codes (-stage, -both).
func (Demo) ExecLite(ctx context.Context, stage, both *bool) error {
	return demo(ctx, "exec-lite", stage, fmt.Sprint("-both=", both != nil && *both))
}

// Shows Python: a web page, an environment (built, then cached), an exception.
func (Demo) Python(ctx context.Context, stage *bool) error { return demo(ctx, "python", stage) }

// Shows a USB stick plugged, used and unplugged (-id=10c4:ea60: a real one).
func (Demo) USB(ctx context.Context, stage *bool, id *string) error {
	return demo(ctx, "usb", stage, "-id="+value(id))
}

// Shows a volume with a quota filled, kept, rolled back and restored.
func (Demo) Dataset(ctx context.Context, stage *bool) error { return demo(ctx, "dataset", stage) }

// Shows a task on an SSH host that outlives the drain and the loss of its node.
func (Demo) Remote(ctx context.Context, stage *bool) error { return demo(ctx, "remote", stage) }

// Compares raw_exec and exec-lite live; without a terminal, for ten seconds.
func (Demo) Compare(ctx context.Context) error { return lab.RunProgram(ctx, "./lab/demo/compare") }

// Builds and fetches everything that the demos need to run offline.
func (Demo) Prepare(ctx context.Context) error {
	return withLab(ctx, func(ctx context.Context, l *lab.Lab) error { return l.PrepareDemos(ctx) })
}

// demo plays a demo. If stage is true, it waits for a key after each act.
func demo(ctx context.Context, name string, stage *bool, args ...string) error {
	return lab.RunProgram(ctx, "./lab/demo", append(args, fmt.Sprint("-stage=", stage != nil && *stage), name)...)
}
