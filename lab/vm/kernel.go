// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// kernelEnv names a kernel to boot instead of Debian's newest: a linux-image package, or a directory with one unpacked
// in it.
const kernelEnv = "LAB_VM_KERNEL"

// kernel is an unpacked kernel.
type kernel struct {
	image   string // the file to boot
	release string // 6.1.0-56-amd64
	dir     string // the directory that has lib/modules/RELEASE
}

func (k kernel) modules() string { return filepath.Join(k.dir, "lib", "modules", k.release) }

// findKernel returns the kernel that LAB_VM_KERNEL names, or else the one in the cache, or else downloads Debian's.
// For a newer one, remove the one in the cache.
func findKernel(ctx context.Context, progress func(string, ...any)) (kernel, error) {
	dir, err := cache.Dir()
	if err != nil {
		return kernel{}, err
	}
	dir = filepath.Join(dir, "vm")
	// two tests must not unpack the same package at once
	unlock, err := cache.Lock(ctx, filepath.Join(dir, "kernel.lock"), func() {
		progress("waiting for another process that unpacks the VM's kernel")
	})
	if err != nil {
		return kernel{}, err
	}
	defer unlock()
	if given := os.Getenv(kernelEnv); given != "" {
		k, err := givenKernel(ctx, given, dir)
		if err != nil {
			return kernel{}, fmt.Errorf("failed to use %s: %w", kernelEnv, err)
		}
		return k, nil
	}
	if k, err := cachedKernel(dir); err == nil {
		return k, nil
	}
	if err := fetchKernel(ctx, dir, progress); err != nil {
		return kernel{}, fmt.Errorf("failed to get a kernel for the VM "+
			"(set %s to a linux-image package, or to a directory with one unpacked in it): %w", kernelEnv, err)
	}
	return cachedKernel(dir)
}

// givenKernel returns the kernel that the user named.
func givenKernel(ctx context.Context, path, cache string) (kernel, error) {
	st, err := os.Stat(path)
	if err != nil {
		return kernel{}, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return kernel{}, err
	}
	if st.IsDir() {
		k, err := unpacked(path)
		if err != nil {
			return kernel{}, err
		}
		return k, index(ctx, k)
	}
	to := filepath.Join(cache, "given-"+strings.TrimSuffix(filepath.Base(path), ".deb"))
	if k, err := unpacked(to); err == nil {
		return k, nil
	}
	if err := unpack(ctx, path, to); err != nil {
		return kernel{}, err
	}
	return unpacked(to)
}

// cachedKernel returns the kernel in the cache.
func cachedKernel(dir string) (kernel, error) {
	dirs, err := filepath.Glob(filepath.Join(dir, "linux-image-*"))
	if err != nil {
		return kernel{}, err
	}
	for _, d := range dirs {
		if k, err := unpacked(d); err == nil {
			return k, nil
		}
	}
	return kernel{}, errors.New("there is no kernel in " + dir)
}

var dependsLine = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-\S+)`)

// fetchKernel downloads the package that Debian's linux-image-amd64 depends on now.
func fetchKernel(ctx context.Context, dir string, progress func(string, ...any)) error {
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is missing: this is no Debian", tool)
		}
	}
	const meta = "linux-image-amd64"
	out, err := output(ctx, "", "apt-cache", "depends", meta)
	if err != nil {
		return err
	}
	m := dependsLine.FindStringSubmatch(out)
	if m == nil {
		return fmt.Errorf("apt knows no package %s (apt-get update?)", meta)
	}
	progress("downloading the VM's kernel, package %s (70 MB)", m[1])
	tmp, err := os.MkdirTemp(dir, "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if _, err := output(ctx, tmp, "apt-get", "download", m[1]); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get has downloaded %q, %w", debs, err)
	}
	progress("unpacking the VM's kernel")
	return unpack(ctx, debs[0], filepath.Join(dir, strings.TrimSuffix(filepath.Base(debs[0]), ".deb")))
}

// unpack unpacks a package by a rename, so that a partly unpacked one never looks complete.
func unpack(ctx context.Context, deb, to string) error {
	tmp := to + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if _, err := output(ctx, "", "dpkg-deb", "-x", deb, tmp); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	// merged /usr has them there
	if _, err := os.Lstat(filepath.Join(tmp, "lib")); errors.Is(err, os.ErrNotExist) {
		if err := os.Symlink("usr/lib", filepath.Join(tmp, "lib")); err != nil {
			return err
		}
	}
	k, err := unpacked(tmp)
	if err == nil {
		err = index(ctx, k)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Rename(tmp, to)
}

// unpacked looks for a kernel in a directory.
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
	return kernel{}, fmt.Errorf("there is no kernel in %s: want boot/vmlinuz-VERSION and lib/modules/VERSION", dir)
}

// index makes the lists of modules by name and by alias, if the package has none.
func index(ctx context.Context, k kernel) error {
	if _, err := os.Stat(filepath.Join(k.modules(), "modules.dep.bin")); err == nil {
		return nil
	}
	depmod, err := sbin("depmod")
	if err != nil {
		return fmt.Errorf("%w (package kmod)", err)
	}
	_, err = output(ctx, "", depmod, "-b", k.dir, k.release)
	return err
}

// sbin finds a program that a user's PATH may not have.
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
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("failed to run %s: %w", filepath.Base(name), err)
	}
	return string(out), nil
}
