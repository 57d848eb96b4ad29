// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// kernel is an unpacked kernel.
type kernel struct {
	image   string // the file to boot
	release string // such as 6.1.0-56-amd64
	dir     string // the directory that has lib/modules/RELEASE
}

func (k kernel) modules() string { return filepath.Join(k.dir, "lib", "modules", k.release) }

// kernelEnv is the variable with the path of a Debian linux-image package, if apt has another distribution's packages.
const kernelEnv = "LAB_VM_KERNEL"

// findKernel returns the kernel of LAB_VM_KERNEL, otherwise the cached kernel, and otherwise downloads Debian's newest.
// To get a newer kernel, remove the cached one.
func findKernel(ctx context.Context, progress func(string, ...any)) (kernel, error) {
	given, name := os.Getenv(kernelEnv), "kernel"
	if given != "" {
		_, err := os.Stat(given)
		if err == nil {
			given, err = filepath.Abs(given)
		}
		if err != nil {
			return kernel{}, fmt.Errorf("failed to use %s: %w", kernelEnv, err)
		}
		name = "given-" + strings.TrimSuffix(filepath.Base(given), ".deb")
	}
	dir, err := cache.Once(ctx, filepath.Join("vm", name), progress, func(scratch string) (string, error) {
		progress("unpacking the VM's kernel, and downloading it if needed (70 MB)")
		return debian(ctx, "kernel", scratch, given)
	})
	if err != nil {
		return kernel{}, fmt.Errorf("failed to get a VM kernel (set %s to use a linux-image .deb): %w", kernelEnv, err)
	}
	return unpacked(dir)
}

// unpacked returns the kernel that was unpacked into a directory.
func unpacked(dir string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil {
		return kernel{}, err
	}
	for _, image := range images {
		k := kernel{image: image, release: strings.TrimPrefix(filepath.Base(image), "vmlinuz-"), dir: dir}
		if st, err := os.Stat(k.modules()); err == nil && st.IsDir() {
			return k, nil
		}
	}
	return kernel{}, fmt.Errorf("no kernel found in %s: want boot/vmlinuz-VERSION and lib/modules/VERSION", dir)
}

//go:embed debian.sh
var debianScript string

// debian runs a command of debian.sh in a scratch directory, and returns the path of the files that it made there.
func debian(ctx context.Context, what, scratch string, args ...string) (string, error) {
	printed := &tail{}
	args = append([]string{"-c", debianScript, "debian.sh", what, scratch}, args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Stdout, cmd.Stderr = printed, printed
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(printed.String()))
	}
	return filepath.Join(scratch, "made"), nil
}

// sbin finds a program that might not be on a user's PATH.
func sbin(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		p := filepath.Join(dir, name)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is missing", name)
}

// output runs a tool and returns what it prints on stdout. Its stderr is in the error.
func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("failed to run %s: %w", filepath.Base(name), err)
	}
	return string(out), nil
}
