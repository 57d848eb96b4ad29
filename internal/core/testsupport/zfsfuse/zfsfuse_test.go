// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package zfsfuse_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"
)

func TestMain(m *testing.M) { zfsfusetest.Main(m) }

func TestRemove_LeavesNothing(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, daemon int){
		"as it is":          func(*testing.T, int) {},
		"its daemon killed": kill,
	} {
		t.Run(name, func(t *testing.T) {
			pool := zfsfusetest.New(t)
			mount := filepath.Join(t.TempDir(), "mount")
			zfs(t, pool, "create", "-o", "mountpoint="+mount, pool.Root+"/a")
			must.NoError(t, os.WriteFile(filepath.Join(mount, "file"), []byte("x"), 0o600))
			unmounted := filepath.Join(t.TempDir(), "unmounted") // as if the plugin was killed before the mount
			zfs(t, pool, "create", "-o", "canmount=noauto", "-o", "mountpoint="+unmounted, pool.Root+"/b")
			must.NoError(t, os.Mkdir(unmounted, 0))
			daemons := daemons(t)
			must.Len(t, 1, daemons)
			dir, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(daemons[0]), "cwd"))
			must.NoError(t, err)

			_, err = zfsfuse.Make(t.Context(), dir+"2", zfsfuse.Options{Size: 1 << 30})
			must.ErrorContains(t, err, "zfs-fuse is already running")
			must.False(t, testsupport.Exists(dir+"2"))
			must.Eq(t, pool, opened(dir))

			end(t, daemons[0])
			must.NoError(t, zfsfuse.Remove(dir))
			must.Eq(t, name != "as it is", testsupport.Exists(unmounted))
			for _, file := range []string{dir, mount, "/run/zfs/zfs_socket", "/run/lock/zfs/zfs_lock"} {
				must.False(t, testsupport.Exists(file), must.Sprint(file))
			}
			mounts, err := os.ReadFile("/proc/self/mounts")
			must.NoError(t, err)
			must.StrNotContains(t, string(mounts), pool.Root)
			must.NoError(t, zfsfuse.Remove(dir))
		})
	}
}

func TestMake_NamesAMissingProgram(t *testing.T) {
	testsupport.NeedRoot(t)
	testsupport.NeedPrograms(t, "/usr/sbin/zfs-fuse")
	const program = "/usr/sbin/zfs-fuse" // replaced only in the test's mount namespace
	must.NoError(t, unix.Mount("/dev/null", program, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(program, 0)) })
	dir := filepath.Join(t.TempDir(), "pool")
	_, err := zfsfuse.Make(t.Context(), dir, zfsfuse.Options{Size: 1 << 30})
	must.ErrorContains(t, err, "program zfs-fuse (package zfs-fuse)")
	must.ErrorIs(t, err, zfsfuse.ErrMissing)
	must.False(t, testsupport.Exists(dir))
}

func TestScript_BehavesLikeOpenZFS(t *testing.T) {
	pool := zfsfusetest.New(t)
	mount := filepath.Join(t.TempDir(), "mount")
	zfs(t, pool, "create", "-o", "mountpoint="+mount, pool.Root+"/a")
	zfs(t, pool, "set", "outrider:test=with a space", "quota=64M", "atime=off", pool.Root+"/a")
	have := zfs(t, pool, "get", "-H", "-o", "value", "outrider:test,quota,atime", pool.Root+"/a")
	must.Eq(t, "with a space\n64M\noff\n", have)

	must.NoError(t, os.WriteFile(filepath.Join(mount, "file"), []byte("x"), 0o600))
	zfs(t, pool, "snapshot", pool.Root+"/a@s")
	out, err := exec.Command(pool.Program, "destroy", pool.Root+"/a").CombinedOutput()
	must.Error(t, err)
	must.StrContains(t, string(out), "has children")

	zfs(t, pool, "get", "all", pool.Root+"/a") // as the plugin does before it unmounts a dataset
	must.NoError(t, unix.Unmount(mount, 0))
	zfs(t, pool, "rollback", "-r", pool.Root+"/a@s")
	zfs(t, pool, "mount", pool.Root+"/a")
	zfs(t, pool, "unmount", pool.Root+"/a")
	zfs(t, pool, "rename", pool.Root+"/a", pool.Root+"/b")
	out, err = exec.Command("sh", "-ec", `"$0" send "$1/b@s" | "$0" receive "$1/c"`, pool.Program, pool.Root).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))

	zfs(t, pool, "hold", "mine", pool.Root+"/b@s") // destroy must fail without retries
	out, err = exec.Command(pool.Program, "destroy", "-r", pool.Root+"/b").CombinedOutput()
	must.Error(t, err)
	must.StrContains(t, string(out), "busy")
	zfs(t, pool, "release", "mine", pool.Root+"/b@s")
	zfs(t, pool, "destroy", "-r", pool.Root+"/b")
	must.Eq(t, pool.Root+"\n"+pool.Root+"/c\n", zfs(t, pool, "list", "-H", "-r", "-o", "name", pool.Root))
}

// With OpenZFS, killing zfs does not interrupt the system call that does the work. The script behaves the same.
func TestScript_CompletesACommandAfterAKill(t *testing.T) {
	dir := t.TempDir()
	program, works, done := filepath.Join(dir, "zfs"), filepath.Join(dir, "works"), filepath.Join(dir, "done")
	must.NoError(t, os.WriteFile(program, []byte(zfsfuse.Script), 0o755))
	must.NoError(t, os.WriteFile(program+zfsfuse.Suffix, fmt.Appendf(nil,
		"#!/bin/sh\n: >%[1]q; while [ -e %[1]q ]; do sleep 0.02; done; : >%[2]q\n", works, done), 0o755))
	cmd := exec.Command(program, "create", "pool/a")
	must.NoError(t, cmd.Start())
	testsupport.Eventually(t, "the command works", func() bool { return testsupport.Exists(works) })
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	must.NoError(t, os.Remove(works))
	testsupport.Eventually(t, "the command is done", func() bool { return testsupport.Exists(done) })
}

func zfs(t *testing.T, pool zfsfuse.Pool, args ...string) string {
	t.Helper()
	out, err := exec.Command(pool.Program, args...).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return string(out)
}

func opened(dir string) zfsfuse.Pool {
	pool, _ := zfsfuse.Open(dir)
	return pool
}

func kill(t *testing.T, daemon int) {
	must.NoError(t, syscall.Kill(daemon, syscall.SIGKILL))
}

// daemons returns the pids of the zfs-fuse daemons in this process's mount namespace.
func daemons(t *testing.T) (pids []int) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/mnt")
	must.NoError(t, err)
	for _, pid := range testsupport.Processes(func(args []string) bool { return filepath.Base(args[0]) == "zfs-fuse" }) {
		if space, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns/mnt")); space == own {
			pids = append(pids, pid)
		}
	}
	return pids
}
