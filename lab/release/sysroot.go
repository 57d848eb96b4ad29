// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// sysrootPackages are what libusb's users are linked with. The C library comes with the compiler.
var sysrootPackages = []string{"libusb-1.0-0", "libusb-1.0-0-dev", "libudev1"}

// sysroot returns a directory with Debian's libusb for an architecture. apt downloads the packages once, for a state of
// its own, so that the machine's list of architectures and packages stays as it is. An error says what is missing.
func sysroot(ctx context.Context, arch string, progress func(format string, args ...any)) (string, error) {
	if err := hasCompiler(arch); err != nil {
		return "", err
	}
	return cache.Once(ctx, "libusb-"+arch, progress, func(scratch string) (string, error) {
		progress("downloading Debian's libusb for %s", arch)
		if err := download(ctx, arch, scratch); err != nil {
			return "", err
		}
		root := filepath.Join(scratch, "root")
		debs, err := filepath.Glob(filepath.Join(scratch, "*.deb"))
		if err != nil {
			return "", err
		}
		if len(debs) != len(sysrootPackages) {
			return "", fmt.Errorf("apt-get downloaded %v in place of %v", debs, sysrootPackages)
		}
		for _, deb := range debs {
			if err := run(exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, root)); err != nil {
				return "", err
			}
		}
		return root, nil
	})
}

// hasCompiler says what has to be installed.
func hasCompiler(arch string) error {
	cc := build.Triplet(arch) + "-gcc"
	for program, pkg := range map[string]string{
		cc:           map[string]string{"amd64": "gcc-x86-64-linux-gnu", "arm64": "gcc-aarch64-linux-gnu"}[arch],
		"pkg-config": "pkg-config", "apt-get": "apt", "dpkg-deb": "dpkg",
	} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("there is no %s, which Debian has in the package %s", program, pkg)
		}
	}
	// a compiler without the C library's headers is no help
	cmd := exec.Command(cc, "-E", "-x", "c", "-include", "stdlib.h", os.DevNull)
	if cmd.Run() != nil {
		return fmt.Errorf("%s finds no stdlib.h: Debian has it in libc6-dev, or libc6-dev-%s-cross", cc, arch)
	}
	return nil
}

// download gets the packages from where apt gets this machine's, into a directory that also has apt's state.
func download(ctx context.Context, arch, dir string) error {
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "status"), nil, 0o644); err != nil {
		return err
	}
	options := []string{"-q",
		"-oAPT::Architecture=" + arch, "-oAPT::Architectures=" + arch, "-oDir::State=" + dir,
		"-oDir::Cache=" + dir + "/cache", "-oDir::State::Lists=" + dir + "/lists", "-oDir::State::Status=" + dir + "/status",
		"-oAPT::Sandbox::User=", "-oAcquire::Languages=none", "-oAPT::Get::List-Cleanup=false",
		"-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
	}
	for _, args := range [][]string{{"update"}, append([]string{"download"}, sysrootPackages...)} {
		cmd := exec.CommandContext(ctx, "apt-get", append(options[:len(options):len(options)], args...)...)
		cmd.Dir = dir
		if err := run(cmd); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command; an error has what it printed last.
func run(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return errors.Join(fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err), errors.New(lines[len(lines)-1]))
}
