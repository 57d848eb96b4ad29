// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/u-root/u-root/pkg/cpio"
	"github.com/u-root/u-root/pkg/kmodule"

	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/cache"
	"github.com/outrider-dev/outrider/lab/internal/gobuild"
)

// bootModules are the modules that the VM needs before it has the host's files.
var bootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

//go:embed init.sh
var initScript string

// initramfs returns the archive that the kernel starts from: busybox, the script that it runs, the modules in the order
// to load them, and the configuration.
func initramfs(k kernel, o Options, server sshd.Server, keys string) ([]byte, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("%w (apt-get install busybox-static)", err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	modules, err := dependencies(k, bootModules)
	if err != nil {
		return nil, err
	}
	disk := ""
	if o.Disk != "" {
		disk = DiskMount
	}
	config := fmt.Sprintf("release=%s modules=%s disk=%s sshd=%s keys=%s\n", quote(k.release), quote(k.modules()), disk,
		quote(server.Args[0]), quote(keys))
	records := []cpio.Record{
		cpio.StaticFile("init", initScript, 0o755),
		cpio.StaticFile("config", config, 0o644),
		cpio.Directory("bin", 0o755),
		cpio.StaticFile("bin/busybox", string(busybox), 0o755),
		cpio.Symlink("bin/sh", "busybox"),
		cpio.Directory("modules", 0o755),
	}
	for i, m := range modules {
		data, err := os.ReadFile(m)
		if err != nil {
			return nil, fmt.Errorf("failed to read a module: %w", err)
		}
		name := fmt.Sprintf("modules/%02d-%s", i, filepath.Base(m))
		records = append(records, cpio.StaticFile(name, string(data), 0o644))
	}
	var b bytes.Buffer
	w := cpio.Newc.Writer(&b)
	if err := errors.Join(cpio.WriteRecords(w, records), cpio.WriteTrailer(w)); err != nil {
		return nil, fmt.Errorf("failed to create the initramfs: %w", err)
	}
	return b.Bytes(), nil
}

// dependencies returns the files of the modules and of their dependencies, in the order to load them. Modules that are
// built into the kernel have no file.
func dependencies(k kernel, names []string) (files []string, err error) {
	var mu sync.Mutex // guards files: independent modules are probed at the same time
	prober, err := kmodule.NewProber(kmodule.ProbeOpts{
		RootDir: k.dir, KVer: k.release, IgnoreProcMods: true,
		DryRunCB: func(file string) {
			mu.Lock()
			defer mu.Unlock()
			files = append(files, file)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("failed to read the kernel's modules: %w", err)
	}
	for _, name := range names {
		if err := prober.Probe(name, ""); err != nil {
			return nil, fmt.Errorf("the kernel %s has no module %s: %w", k.release, name, err)
		}
	}
	return files, nil
}

// Build builds a program of this folder that runs in a VM, such as vmctl, and returns its path in the cache.
func Build(ctx context.Context, name string) (string, error) {
	root, err := build.Root(".")
	if err != nil {
		return "", err
	}
	dir, err := cache.Dir()
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "vm", name)
	unlock, err := cache.Lock(ctx, out+".lock", nil)
	if err != nil {
		return "", err
	}
	defer unlock()
	err = gobuild.Build{
		Dir: filepath.Join(root, "lab"), Env: []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64"},
		Args: []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, "./vm/" + name},
	}.Run(ctx)
	if err != nil {
		return "", fmt.Errorf("failed to build %s: %w", name, err)
	}
	return out, nil
}
