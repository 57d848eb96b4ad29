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

// The tests' goroutines change the threads they run on: never the main one, whose
// mounts are the process's.
func init() { runtime.LockOSThread() }

// ownHost gives the test a host of its own, as far as mounts and /dev go: the thread
// with it ends with the test. Launchers see it as the host, with mounts that are
// shared, as systemd has them. At the end its mounts must be as they were after
// change, and so must its /dev unless it is the machine's, which others change.
func ownHost(t *testing.T, change ...func(t *testing.T)) {
	t.Helper()
	testsupport.NeedRoot(t)
	nothingLeft(t)
	runtime.LockOSThread() // and never unlocked
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

// smallDev makes the host's /dev one with a few entries of each kind, of which
// nobody else knows.
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
	// something else mounted over a node
	must.NoError(t, os.WriteFile("/dev/console", nil, 0o600))
	node(t, "/dev/shm/console", 0o620, 5, 1)
	must.NoError(t, unix.Mount("/dev/shm/console", "/dev/console", "", unix.MS_BIND, ""))
}

func node(t *testing.T, path string, mode uint32, major, minor uint32) {
	t.Helper()
	must.NoError(t, unix.Mknod(path, unix.S_IFCHR|mode, int(unix.Mkdev(major, minor))))
	must.NoError(t, os.Chmod(path, os.FileMode(mode)))
}

// mountsHere is the mount table of this thread.
func mountsHere(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	must.NoError(t, err)
	return string(b)
}

// wantMounts wants the mounts that there were, less what another process has unmounted in order to remove the directory
// where it was mounted. It may also have renamed a directory above.
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

// placesOf has for each mount of a table, by all but its paths, where it is.
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
			return fmt.Errorf("the host has a mount more: %s at %s", mount, at)
		} else if at != was && testsupport.Exists(was) {
			return fmt.Errorf("the host's mount %s is at %s, was at %s", mount, at, was)
		}
	}
	for mount, at := range before {
		if _, ok := now[mount]; !ok && testsupport.Exists(at) {
			return fmt.Errorf("the host has a mount less: %s at %s", mount, at)
		}
	}
	return nil
}

// tree describes what is in a directory and below it, less what everybody makes
// and removes at any time.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	must.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone
		}
		lines = append(lines, describe(path))
		if path == dir+"/pts" || path == dir+"/shm" {
			return fs.SkipDir
		}
		return nil
	}))
	return strings.Join(lines, "\n")
}

// describe is what lstat(2) says of a path, but for the file system that it is on.
func describe(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return path + " " + err.Error()
	}
	link, _ := os.Readlink(path)
	return fmt.Sprintf("%s %o %d:%d %d/%d %s", path, st.Mode, st.Uid, st.Gid, unix.Major(st.Rdev), unix.Minor(st.Rdev),
		link)
}

// top is tree, without what is in the directories.
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
