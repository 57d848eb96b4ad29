// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package rootfs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// Tool is the program that creates root file systems. New needs it, and needs to run as root: see Missing.
const Tool = "mmdebstrap"

// Missing returns why this machine cannot create root file systems, or nil.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can create a root file system")
	}
	if _, err := exec.LookPath(Tool); err != nil {
		return fmt.Errorf("a root file system needs %s: %w", Tool, err)
	}
	return nil
}

// packages are installed in addition to Debian's essential packages and apt, for the example jobs of exec-lite, python
// and dataset, and for the installation of plugins.
var packages = []string{"ca-certificates", "iproute2", "mount", "procps", "python3", "python3-venv",
	"rpm", "unzip", "zfs-fuse"}

// finish downloads libusb, so apt-get can install it without a network, and removes files that are slow to unpack.
const finish = `chroot "$1" sh -c "apt-get clean && apt-get -qq --download-only install libusb-1.0-0 &&
rm -r /usr/share/locale/* /usr/share/doc/* /usr/share/man/* /var/cache/apt/*.bin"`

// tarball returns the archive of a root file system. It is created once per machine, which takes half a minute.
func tarball(ctx context.Context, progress func(format string, args ...any)) (string, error) {
	made := sha256.Sum256([]byte(strings.Join(packages, " ") + finish))
	name := fmt.Sprintf("rootfs-bookworm-%s-%.4x.tar", runtime.GOARCH, made)
	return cache.Once(ctx, name, progress, func(scratch string) (string, error) {
		if err := Missing(); err != nil {
			return "", err
		}
		progress("creating a root file system from Debian packages, which takes about half a minute")
		made := filepath.Join(scratch, "root.tar")
		out, err := exec.CommandContext(ctx, Tool, "--quiet", "--variant=apt", "--include="+strings.Join(packages, ","),
			"--aptopt=Acquire::GzipIndexes true", "--format=tar", "--skip=cleanup/apt/lists,cleanup/apt/cache",
			"--customize-hook="+finish, "bookworm", made).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("failed to run %s: %w\n%s", Tool, err, out)
		}
		return made, nil
	})
}
