// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// NeedRoot skips a test that only root can run.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// Python is the distribution's interpreter.
const Python = "/usr/bin/python3"

// NeedPython skips a test that runs Python programs if the machine has no interpreter for them, or no uv, by which the
// driver finds one.
func NeedPython(t testing.TB) {
	t.Helper()
	NeedPrograms(t, Python, "uv")
}

// NeedPrograms skips a test that runs these programs, of the PATH or by their paths, if one is not installed.
func NeedPrograms(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
}

// HungMount mounts a FUSE file system without a server at the directory: a process that touches it waits until
// release, or the end of the test. The test itself must not touch it.
func HungMount(t testing.TB, dir string) (release func()) {
	t.Helper()
	NeedRoot(t)
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())
	if err := unix.Mount("outrider-test", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		fuse.Close()
		t.Skipf("FUSE can't be mounted here: %v", err)
	}
	t.Cleanup(func() {
		fuse.Close() // ends each call that still waits
		test.NoError(t, unix.Unmount(dir, unix.MNT_DETACH), test.Sprint("failed to unmount"))
	})
	return func() { fuse.Close() }
}

// HungDir makes a directory and mounts such a file system there until the end of the test.
func HungDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	HungMount(t, dir)
	return dir
}

// AsUser runs a function on a thread that has the ids of another user, and fails the test if it returns an error.
func AsUser(t testing.TB, id int, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			// a raw call, since Go's applies to each thread of the process
			if _, _, errno := unix.RawSyscall(call, uintptr(id), uintptr(id), uintptr(id)); errno != 0 {
				done <- errno
				return
			}
		}
		done <- f()
	}()
	must.NoError(t, <-done)
}

// Exists reports whether there is a file of that name, be it a dangling link.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Descriptors counts the file descriptors that this process has open.
func Descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must.NoError(t, err)
	return len(entries)
}
