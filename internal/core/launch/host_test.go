// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Tests change the mounts of the thread that they run on. No test may run on the main thread, because /proc/self shows
// the mounts of that thread, so init locks it.
func init() { runtime.LockOSThread() }

// ownHost gives the test its own thread with a copy of the host's mounts, which launchers take for the host's. They are
// shared mounts, as under systemd. At the end of the test, the mounts and /dev must be as the change functions have
// left them. Without change functions, the test uses the machine's /dev, which is not checked, because other processes
// change it.
func ownHost(t *testing.T, change ...func(t *testing.T)) {
	t.Helper()
	testsupport.NeedRoot(t)
	nothingLeft(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	must.NoError(t, unix.Unshare(unix.CLONE_NEWNS))
	must.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	for _, f := range change {
		f(t)
	}
	mounts, dev := mountsHere(t), ""
	if len(change) > 0 {
		dev = tree(t, "/dev")
	}
	t.Cleanup(func() {
		wantMounts(t, mounts)
		if dev == "" {
			return
		}
		test.Eq(t, dev, tree(t, "/dev"), test.Sprintf("the host's /dev was\n%s\nand", dev))
	})
}

// smallDev replaces the host's /dev with a private one with a few entries of each kind.
func smallDev(t *testing.T) {
	t.Helper()
	pts, err := unix.Open("/dev/pts", unix.O_PATH|unix.O_CLOEXEC, 0)
	must.NoError(t, err)
	defer unix.Close(pts)
	must.NoError(t, unix.Mount("dev", "/dev", "tmpfs", 0, "mode=0755"))
	for _, dir := range []string{"/dev/pts", "/dev/shm", "/dev/bus/usb/001", "/dev/serial/by-id", "/dev/nomad-usb/stick"} {
		must.NoError(t, os.MkdirAll(dir, 0o755))
	}
	must.NoError(t, unix.Mount(fmt.Sprintf("/proc/self/fd/%d", pts), "/dev/pts", "", unix.MS_BIND, ""))
	must.NoError(t, unix.Mount("shm", "/dev/shm", "tmpfs", 0, ""))
	node(t, "/dev/null", 0o666, 1, 3)
	node(t, "/dev/zero", 0o666, 1, 5)
	node(t, "/dev/tty", 0o666, 5, 0)
	node(t, "/dev/ptmx", 0o666, 5, 2)
	node(t, "/dev/ttyUSB0", 0o660, 1, 3)
	must.NoError(t, os.Lchown("/dev/ttyUSB0", 0, 20))
	must.NoError(t, unix.Mknod("/dev/loop0", unix.S_IFBLK|0o660, int(unix.Mkdev(7, 300))))
	must.NoError(t, os.Chmod("/dev/loop0", 0o660))
	node(t, "/dev/bus/usb/001/004", 0o664, 1, 3)
	node(t, "/dev/nomad-usb/stick/tty", 0o660, 1, 5)
	must.NoError(t, os.Lchown("/dev/nomad-usb/stick/tty", 0, 4242))
	must.NoError(t, os.Symlink("/proc/self/fd", "/dev/fd"))
	must.NoError(t, os.Symlink("ttyUSB0", "/dev/radio"))
	must.NoError(t, os.Symlink("../../ttyUSB0", "/dev/serial/by-id/usb-radio-if00"))
	must.NoError(t, os.WriteFile("/dev/file", []byte("content"), 0o640))
	must.NoError(t, unix.Mkfifo("/dev/initctl", 0o600))
	// a node that is mounted over a file
	must.NoError(t, os.WriteFile("/dev/console", nil, 0o600))
	node(t, "/dev/shm/console", 0o620, 5, 1)
	must.NoError(t, unix.Mount("/dev/shm/console", "/dev/console", "", unix.MS_BIND, ""))
}

func node(t *testing.T, path string, mode uint32, major, minor uint32) {
	t.Helper()
	must.NoError(t, unix.Mknod(path, unix.S_IFCHR|mode, int(unix.Mkdev(major, minor))))
	must.NoError(t, os.Chmod(path, os.FileMode(mode)))
}

// mountsHere returns the mount table of this thread.
func mountsHere(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	must.NoError(t, err)
	return string(b)
}

// wantMounts checks that the mounts are the same as before. A mount may be missing or have another path if another
// process has removed or renamed its mount point, or a directory above it.
func wantMounts(t *testing.T, before string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := compareMounts(placesOf(before), placesOf(mountsHere(t)))
		if err == nil || time.Now().After(end) {
			test.NoError(t, err)
			return
		}
	}
}

// placesOf returns the mount points of a mount table. Each key consists of the mount's other fields, without the path
// of its root.
func placesOf(table string) map[string]string {
	at := map[string]string{}
	for line := range strings.Lines(table) {
		f := strings.Fields(line) // proc_pid_mountinfo(5)
		at[strings.Join(slices.Concat(f[:3], f[5:]), " ")] = f[4]
	}
	return at
}

func compareMounts(before, now map[string]string) error {
	for mount, at := range now {
		if was, ok := before[mount]; !ok {
			return fmt.Errorf("the host has an additional mount: %s at %s", mount, at)
		} else if at != was && testsupport.Exists(was) {
			return fmt.Errorf("the host's mount %s is at %s, was at %s", mount, at, was)
		}
	}
	for mount, at := range before {
		if _, ok := now[mount]; !ok && testsupport.Exists(at) {
			return fmt.Errorf("the host lacks a mount: %s at %s", mount, at)
		}
	}
	return nil
}

// tree describes a directory and everything below it, except the contents of pts and shm, where other processes create
// and remove entries at any time.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	must.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // the entry has been removed
		}
		lines = append(lines, describe(path))
		if path == dir+"/pts" || path == dir+"/shm" {
			return fs.SkipDir
		}
		return nil
	}))
	return strings.Join(lines, "\n")
}

// describe returns the result of lstat(2) for a path, without the device that it is on.
func describe(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return path + " " + err.Error()
	}
	link, _ := os.Readlink(path)
	return fmt.Sprintf("%s %o %d:%d %d/%d %s", path, st.Mode, st.Uid, st.Gid, unix.Major(st.Rdev), unix.Minor(st.Rdev),
		link)
}

// top describes the entries of a directory like tree, but not what is below them. It omits the names in without.
func top(t *testing.T, dir string, without ...string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	var lines []string
	for _, e := range entries {
		if !slices.Contains(without, e.Name()) {
			lines = append(lines, strings.TrimPrefix(describe(filepath.Join(dir, e.Name())), dir))
		}
	}
	return strings.Join(lines, "\n")
}
