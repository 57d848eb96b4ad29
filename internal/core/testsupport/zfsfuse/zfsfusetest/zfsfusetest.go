// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package zfsfusetest makes pools for tests.
package zfsfusetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
)

// step is the environment variable that distinguishes the processes of Main. It is unset in the outer process, "enter"
// in the inner process, and "inside" in programs that tests start.
const step = "OUTRIDER_ZFSFUSE_TEST"

// Main is the TestMain of packages whose tests make pools. It runs the tests in a new mount namespace, where no other
// zfs-fuse runs. Without root it runs them directly, and they cannot make pools.
func Main(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 || os.Getenv(step) == "inside" {
		return m.Run()
	}
	if os.Getenv(step) == "enter" {
		os.Setenv(step, "inside")
		if err := enter(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), step+"=enter")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	return 2 // killed by a signal
}

// enter prepares this process's mount namespace for a separate zfs-fuse. Mounts propagate to namespaces that are made
// from this one, as on a host.
func enter() error {
	for _, mount := range []struct {
		kind, dir string
		flags     uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{"", "/", unix.MS_REC | unix.MS_SHARED},
		{"tmpfs", "/run/zfs", 0},
		{"tmpfs", "/run/lock", 0},
	} {
		if err := os.MkdirAll(mount.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(mount.kind, mount.dir, mount.kind, mount.flags, ""); err != nil {
			return &os.PathError{Op: "mount", Path: mount.dir, Err: err}
		}
	}
	return nil
}

// New makes a pool that is removed at the end of the test. It skips the test if the machine does not support pools. The
// pool is in memory, so disk writes of other processes do not delay it.
func New(t testing.TB) zfsfuse.Pool {
	t.Helper()
	return newPool(t, 1<<30)
}

// Small makes a pool that a test can fill quickly.
func Small(t testing.TB) zfsfuse.Pool {
	t.Helper()
	return newPool(t, 256<<20)
}

func newPool(t testing.TB, size int64) zfsfuse.Pool {
	t.Helper()
	testsupport.NeedRoot(t)
	parent, err := os.MkdirTemp("/run/zfs", "")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(parent, 0o711)) // tasks run as other users
	dir := filepath.Join(parent, "pool")
	t.Cleanup(func() { must.NoError(t, errors.Join(zfsfuse.Remove(dir), os.RemoveAll(parent))) })
	pool, err := zfsfuse.Make(t.Context(), dir, zfsfuse.Options{Size: size})
	if errors.Is(err, zfsfuse.ErrMissing) {
		t.Skip(err)
	}
	must.NoError(t, err)
	return pool
}

// Sub makes a dataset below the pool's root, with missing parents, and returns its full name.
func Sub(t testing.TB, pool zfsfuse.Pool, name string) (root string) {
	t.Helper()
	root = pool.Root + "/" + name
	out, err := exec.Command(pool.Program, "create", "-p", "-o", "mountpoint=none", root).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return root
}

// UnmountBelow unmounts all datasets that are mounted below a directory. The datasets stay in their pool.
func UnmountBelow(t testing.TB, dir string) {
	t.Helper()
	real, err := filepath.EvalSymlinks(dir)
	must.NoError(t, err)
	mounted, err := mountinfo.GetMounts(mountinfo.PrefixFilter(real))
	must.NoError(t, err)
	var dirs []string
	for _, m := range slices.Backward(mounted) {
		dirs = append(dirs, m.Mountpoint)
	}
	Unmount(t, dirs...)
}

// Unmount unmounts datasets without the program zfs. The script zfs.sh explains why it first accesses them and waits.
func Unmount(t testing.TB, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		must.NoError(t, unix.Statfs(dir, &unix.Statfs_t{}))
	}
	time.Sleep(50 * time.Millisecond)
	for _, dir := range dirs {
		must.NoError(t, unix.Unmount(dir, 0))
	}
}
