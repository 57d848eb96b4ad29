// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
)

// BuildTag makes the release of a plugin's version from its tag, in a fresh clone and by the clone's own code: what is
// not committed, and what was committed later, has no part in it. The result is in the same folder as that of Build.
func BuildTag(ctx context.Context, o Options, version string) (r Result, err error) {
	plugins, err := o.resolve()
	if err != nil {
		return r, err
	}
	if o.Plugin == "" {
		return r, errors.New("a version is that of one plugin: name it by -plugin=NAME")
	}
	tag := tagOf(plugins[0], version)
	if _, err := git(ctx, o.Root, "rev-parse", "--verify", "--quiet", "refs/tags/"+tag); err != nil {
		return r, fmt.Errorf("there is no tag %s in this checkout (git fetch --tags gets those of the project)", tag)
	}
	place := filepath.Join(o.Out, plugins[0].Name)
	err = o.replace(place, func(scratch string) (string, error) {
		results, err := buildClone(ctx, o, plugins, "refs/tags/"+tag, filepath.Join(scratch, "clone"))
		if err != nil {
			return "", err
		}
		r = results[0]
		return r.Dir, nil
	})
	r.Dir = place
	libusb := func(name string) bool { return strings.Contains(name, "-libusb") }
	if err == nil && plugins[0].Libusb && o.Libusb == nil && !slices.ContainsFunc(r.Files, libusb) {
		o.Say("%s: not made in the kind with libusb, which this machine can't make: -libusb=true tells why", plugins[0].Name)
	}
	return r, err
}

// tagOf is the tag of a plugin's version. The go command knows the version of a module in a folder by such a tag.
func tagOf(p build.Plugin, version string) string {
	return "plugins/" + p.Name + "/v" + strings.TrimPrefix(version, "v")
}

// buildClone clones the repository into a new directory, and builds the releases of a commit there with the targets
// that the commit has. The plugins are the one that the options name, or all.
func buildClone(ctx context.Context, o Options, plugins []build.Plugin, ref, dir string) ([]Result, error) {
	// --shared: the objects stay where they are
	if _, err := git(ctx, o.Root, "clone", "--quiet", "--shared", "--no-checkout", o.Root, dir); err != nil {
		return nil, err
	}
	if _, err := git(ctx, dir, "checkout", "--quiet", "--detach", ref); err != nil {
		return nil, err
	}
	args := []string{"tool", "mage", "release:build"}
	if o.Plugin != "" {
		args = append(args, "-plugin="+plugins[0].Name)
	}
	if len(o.Archs) == 1 {
		args = append(args, "-arch="+o.Archs[0])
	}
	if o.Libusb != nil {
		args = append(args, fmt.Sprintf("-libusb=%t", *o.Libusb))
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	// -trimpath lets the go command use what it compiled for another clone; mage's program has a place of its own, since
	// its name is that of the magefile's text alone
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath -buildvcs=false", "GOWORK=",
		"MAGEFILE_CACHE="+filepath.Join(dir, "bin", "mage"))
	if o.Toolchain != "" {
		cmd.Env = append(cmd.Env, "GOTOOLCHAIN="+o.Toolchain)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("failed to build %s in a clone: %w\n%s", ref, err, out)
	}
	var results []Result
	for _, p := range plugins {
		r := Result{Plugin: p, Dir: filepath.Join(dir, "dist", p.Name)}
		var err error
		if r.Files, err = listed(r.Dir); err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// git runs a git command and returns what it prints.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("git %s: %w\n%s", args[0], err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
