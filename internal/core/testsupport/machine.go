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

// NeedPython skips a test that runs Python programs if the machine lacks the interpreter, or uv, which the driver uses
// to find interpreters.
func NeedPython(t testing.TB) {
	t.Helper()
	NeedPrograms(t, Python, "uv")
}

// NeedPrograms skips a test if one of these programs is not installed. Names are searched for in PATH.
func NeedPrograms(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
}

// HungMount mounts a FUSE file system without a server at the directory: a process that accesses it blocks until
// release is called or the test ends. The test itself must not access it.
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
		fuse.Close() // ends all blocked calls
		test.NoError(t, unix.Unmount(dir, unix.MNT_DETACH), test.Sprint("failed to unmount"))
	})
	return func() { fuse.Close() }
}

// HungDir makes a directory and mounts a file system with HungMount there until the end of the test.
func HungDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	HungMount(t, dir)
	return dir
}

// AsUser runs f on a thread with the user and group id of another user, and fails the test if f returns an error.
func AsUser(t testing.TB, id int, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			// a raw call, since Go's wrapper changes all threads of the process
			if _, _, errno := unix.RawSyscall(call, uintptr(id), uintptr(id), uintptr(id)); errno != 0 {
				done <- errno
				return
			}
		}
		done <- f()
	}()
	must.NoError(t, <-done)
}

// Exists reports whether a file exists. A dangling link counts as existing.
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
