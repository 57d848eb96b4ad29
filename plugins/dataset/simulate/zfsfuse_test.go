// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/dataset/simulate"
	"github.com/outrider-dev/outrider/plugins/dataset/simulate/simulatetest"
)

// The pool of one Make after another, each with a dataset that is mounted.
func TestZFSFuse_LeavesNothing(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, daemon int){
		"as it is":          func(*testing.T, int) {},
		"its daemon killed": kill,
	} {
		t.Run(name, func(t *testing.T) {
			pool := simulatetest.New(t)
			mount := filepath.Join(t.TempDir(), "mount")
			out, err := exec.Command(pool.Program, "create", "-o", "mountpoint="+mount, pool.Root+"/a").CombinedOutput()
			must.NoError(t, err, must.Sprint(string(out)))
			must.NoError(t, os.WriteFile(filepath.Join(mount, "file"), []byte("x"), 0o600))
			daemons := zfsFuses(t)
			must.Len(t, 1, daemons)
			dir, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(daemons[0]), "cwd"))
			must.NoError(t, err)

			_, err = simulate.Make(t.Context(), dir+"2", simulatetest.Size)
			must.ErrorContains(t, err, "zfs-fuse runs already")
			must.False(t, testsupport.Exists(dir+"2"))
			must.Len(t, 1, zfsFuses(t))

			end(t, daemons[0])
			must.NoError(t, simulate.Remove(t.Context(), dir))
			must.SliceEmpty(t, zfsFuses(t))
			for _, file := range []string{dir, "/run/zfs/image", "/run/zfs/zfs_socket", "/run/lock/zfs/zfs_lock"} {
				must.False(t, testsupport.Exists(file), must.Sprint(file))
			}
			mounts, err := os.ReadFile("/proc/self/mounts")
			must.NoError(t, err)
			must.StrNotContains(t, string(mounts), pool.Root)
			must.NoError(t, simulate.Remove(t.Context(), dir))

			must.NoError(t, os.Mkdir(dir, 0o700)) // of a Make that was killed before it made anything
			must.NoError(t, simulate.Remove(t.Context(), dir))
			must.False(t, testsupport.Exists(dir))
		})
	}
}

func kill(t *testing.T, daemon int) {
	must.NoError(t, syscall.Kill(daemon, syscall.SIGKILL))
}

// zfsFuses returns the daemons in this process's mount namespace.
func zfsFuses(t *testing.T) (pids []int) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/mnt")
	must.NoError(t, err)
	for _, pid := range testsupport.Processes(func(args []string) bool {
		return filepath.Base(args[0]) == "zfs-fuse"
	}) {
		if space, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns/mnt")); space == own {
			pids = append(pids, pid)
		}
	}
	return pids
}
