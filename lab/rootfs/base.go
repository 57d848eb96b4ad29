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

// Tool makes the root file system. Without it, or without root, New fails: see Missing.
const Tool = "mmdebstrap"

// Missing returns why there can be no root file systems on this machine, or nil.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("a root file system takes root")
	}
	if _, err := exec.LookPath(Tool); err != nil {
		return fmt.Errorf("a root file system takes %s: %w", Tool, err)
	}
	return nil
}

// packages are what a node has beside Debian's essential packages and apt: what exec-lite's example jobs, python's and
// dataset's need, and the tools by which plugins are installed.
var packages = []string{"ca-certificates", "iproute2", "mount", "procps", "python3", "python3-venv",
	"rpm", "unzip", "zfs-fuse"}

// finish has libusb at hand, for apt-get to install without a network, and removes what takes time to unpack.
const finish = `chroot "$1" sh -c "apt-get clean && apt-get -qq --download-only install libusb-1.0-0 &&
rm -r /usr/share/locale/* /usr/share/doc/* /usr/share/man/* /var/cache/apt/*.bin"`

// tarball returns the archive of a root file system, which is made once for a machine and takes half a minute.
func tarball(ctx context.Context, progress func(format string, args ...any)) (string, error) {
	made := sha256.Sum256([]byte(strings.Join(packages, " ") + finish))
	name := fmt.Sprintf("rootfs-bookworm-%s-%.4x.tar", runtime.GOARCH, made)
	return cache.Once(ctx, name, progress, func(scratch string) (string, error) {
		if err := Missing(); err != nil {
			return "", err
		}
		progress("making a root file system from Debian packages, about half a minute")
		made := filepath.Join(scratch, "root.tar")
		out, err := exec.CommandContext(ctx, Tool, "--quiet", "--variant=apt", "--include="+strings.Join(packages, ","),
			"--aptopt=Acquire::GzipIndexes true", "--format=tar", "--skip=cleanup/apt/lists,cleanup/apt/cache",
			"--customize-hook="+finish, "bookworm", made).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%s: %w\n%s", Tool, err, out)
		}
		return made, nil
	})
}
