// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// findZFS returns the directory in the cache that has OpenZFS for a kernel: modules, and the programs zfs and zpool
// with their libraries. It builds them once, because Debian has only the source of the modules, in contrib. To get a
// newer version, remove the directory.
func findZFS(ctx context.Context, k kernel, progress func(string, ...any)) (string, error) {
	dir, err := cache.Once(ctx, filepath.Join("vm", "zfs-"+k.release), progress, func(scratch string) (string, error) {
		progress("building OpenZFS for the VM's kernel %s, which takes minutes, once", k.release)
		return debian(ctx, "zfs", scratch, k.release)
	})
	if err != nil {
		return "", fmt.Errorf("failed to build OpenZFS for the VM's kernel: %w", err)
	}
	return dir, nil
}

// loadZFS loads the modules in a directory of findZFS, and links its programs and libraries to the paths of Debian's
// package. OpenZFS 2.1 needs this module order; later versions have only spl and zfs. If dir is empty, it does nothing.
func (v *VM) loadZFS(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	const script = `cd "$1"
for name in spl znvpair zavl zunicode zcommon icp zlua zzstd zfs; do
	test ! -e "modules/$name.ko" || insmod "modules/$name.ko"
done
ln -sf "$PWD"/sbin/* /usr/sbin
ln -sf "$PWD"/lib/* /usr/lib/x86_64-linux-gnu`
	out, err := v.Output(ctx, "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-ec", script, "sh", dir)
	if err != nil {
		return fmt.Errorf("failed to load OpenZFS in the VM: %w: %s", err, strings.TrimSpace(out))
	}
	return nil
}
