// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const stick = "/dev/nomad-usb/stick/tty" // made by smallDev

// with returns a Spec that runs a shell script with these devices and mounts.
func with(script string, given ...any) *Spec {
	s := shell(script)
	for _, g := range given {
		switch g := g.(type) {
		case task.Device:
			s.Command.Devices = append(s.Command.Devices, g)
		case task.Mount:
			s.Command.Mounts = append(s.Command.Mounts, g)
		}
	}
	return s
}

// running starts a program that waits, and returns its pid. The program's files are below rootOf(pid), but absolute
// links there lead to the host's files.
func running(t *testing.T, spec *Spec) int {
	t.Helper()
	p, r, err := start(spec, nil)
	must.NoError(t, err)
	r.Close()
	must.NoError(t, p.Started(t.Context()))
	t.Cleanup(func() {
		_ = unix.Kill(-p.PID, unix.SIGKILL) // its process group, with its children
		_, _ = unix.Wait4(p.PID, nil, 0, nil)
		unix.Close(p.TakePidFD())
	})
	return p.PID
}

func rootOf(pid int) string { return fmt.Sprintf("/proc/%d/root", pid) }

func TestDevices_AtHostPathsNeedNoMountNamespace(t *testing.T) {
	ownHost(t, smallDev)
	host, err := os.Readlink("/proc/thread-self/ns/mnt")
	must.NoError(t, err)
	for name, given := range map[string][]any{
		"none":                             nil,
		"a device at its path on the host": {task.Device{HostPath: stick, TaskPath: stick}},
	} {
		test.Eq(t, host, strings.TrimSpace(mustRun(t, with("readlink /proc/self/ns/mnt", given...)).out),
			test.Sprintf("%s: mount namespace", name))
	}
	test.NotEq(t, host, strings.TrimSpace(mustRun(t, with("readlink /proc/self/ns/mnt", task.Device{HostPath: stick,
		TaskPath: "/dev/x"})).out),
		test.Sprint("a device at another path is in the host's mount namespace"))
}

func TestDev_HasTheHostsEntries(t *testing.T) {
	for name, change := range map[string][]func(*testing.T){"this machine's": nil, "one of each": {smallDev}} {
		t.Run(name, func(t *testing.T) {
			ownHost(t, change...)
			var host, its string
			for range 3 { // the machine's /dev may change between the two listings
				pid := running(t, with("sleep 600", task.Device{HostPath: "/dev/null", TaskPath: "/dev/zigbee/tty"}))
				if host, its = top(t, "/dev"), top(t, rootOf(pid)+"/dev", "zigbee"); host == its {
					return
				}
			}
			t.Errorf("the host has\n%s\nand the task\n%s", host, its)
		})
	}
}

func TestDev_HasNodesTerminalsAndMounts(t *testing.T) {
	ownHost(t, smallDev)
	must.NoError(t, unix.Mount("mqueue", "/dev/bus/usb", "tmpfs", 0, "")) // a mount of the host inside a directory of /dev
	must.NoError(t, os.WriteFile("/dev/bus/usb/inside", nil, 0o644))
	e := mustRun(t, with(`
set -e
head -c 3 /dev/zero | od -An -tx1
echo gone > /dev/null
cat /dev/file
echo through | cat /dev/fd/0
ls /dev/bus/usb
touch /dev/shm/made-by-the-task
[ -p /dev/initctl ] && echo fifo
stat -f -c %T /dev/pts
[ -x /usr/bin/script ] && script -qc tty /dev/null | grep -c /dev/pts/ || echo 1 # its own terminal
touch /dev/mine && mknod /dev/node c 1 3 && echo > /dev/node && echo free`, task.Device{HostPath: stick, TaskPath: "/dev/x"}))
	want := " 00 00 00\ncontentthrough\ninside\nfifo\ndevpts\n1\nfree\n"
	test.Eq(t, want, e.out)
	_, err := os.Stat("/dev/shm/made-by-the-task")
	test.NoError(t, err, test.Sprint("/dev/shm is not the host's"))
	must.NoError(t, os.Remove("/dev/shm/made-by-the-task"))
	must.NoError(t, unix.Unmount("/dev/bus/usb", 0))
}

func TestDevices_AreAtTheTasksPath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(file, nil, 0o644))
	for _, row := range []struct{ name, path, beside string }{
		{"new directory", "/dev/zigbee/tty", ""},
		{"deep", "/dev/a/b/c/d", ""},
		{"a node on the host", "/dev/ttyUSB0", ""},
		{"a link on the host", "/dev/radio", ""},
		{"a directory on the host", "/dev/bus", ""},
		{"something mounted on the host", "/dev/console", ""},
		{"a file on the host", "/dev/file", ""},
		{"next to another device in a host directory", "/dev/serial/by-id/usb-stick-if00", "usb-radio-if00"},
		{"instead of another device in a host directory", "/dev/serial/by-id/usb-radio-if00", ""},
		{"the directory is a node on the host", "/dev/ttyUSB0/tty", ""},
		{"the directory is a link on the host", "/dev/radio/tty", ""},
		{"the directory is a link out of /dev on the host", "/dev/fd/9", ""},
		{"not in /dev", file, ""},
		{"not a clean path", "//dev/./zigbee//tty/", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			ownHost(t, smallDev)
			e := mustRun(t, with(`stat -L -c "%t:%T %a %u:%g" "$0"; head -c 1 "$0" | od -An -tx1; ls -C "${0%/*}"`,
				task.Device{HostPath: stick, TaskPath: row.path}, task.Device{HostPath: "/dev/null",
					TaskPath: "/dev/other"}).arg0(filepath.Clean(row.path)))
			must.StrHasPrefix(t, "1:5 660 0:4242\n 00\n", e.out)
			test.StrContains(t, e.out, row.beside)
		})
	}
}

// arg0 sets $0 of the Spec's shell script.
func (s *Spec) arg0(v string) *Spec {
	s.Command.Args[2] = v
	return s
}

func TestDevices_AreSeenAfterAReplug(t *testing.T) {
	ownHost(t, smallDev)
	pid := running(t, with("sleep 600", task.Device{HostPath: stick, TaskPath: "/dev/zigbee/tty"}))
	look := func() string {
		e := mustRun(t, with(`stat -L -c %t:%T /dev/zigbee/tty 2>&1`).in(t, pid))
		return strings.TrimSpace(e.out)
	}
	test.Eq(t, "1:5", look(), test.Sprint("at first"))
	must.NoError(t, os.Remove(stick))
	test.StrContains(t, look(), "No such file", test.Sprint("unplugged"))
	node(t, stick, 0o660, 1, 9)
	test.Eq(t, "1:9", look(), test.Sprint("plugged in again"))
	must.NoError(t, os.Remove(stick))
	node(t, stick, 0o660, 1, 5)
	must.NoError(t, os.Lchown(stick, 0, 4242))
}

// in makes the process of a Spec enter the mount namespace of a running program.
func (s *Spec) in(t *testing.T, pid int) *Spec {
	t.Helper()
	ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must.NoError(t, err)
	t.Cleanup(func() { unix.Close(ns) })
	s.MountNamespace = ns
	return s
}

func TestMounts_PropagateOneWay(t *testing.T) {
	dir := t.TempDir()
	ownHost(t, smallDev)
	for _, sub := range []string{"/source", "/target", "/later", "/theirs"} {
		must.NoError(t, os.Mkdir(dir+sub, 0o755))
	}
	must.NoError(t, os.WriteFile(dir+"/source/file", nil, 0o644))
	pid := running(t, with("mount -t tmpfs theirs "+dir+"/theirs && touch "+dir+"/theirs/ready && sleep 600",
		task.Mount{Source: dir + "/source", Target: dir + "/target"}))
	root := rootOf(pid)
	testsupport.Eventually(t, "the program has mounted", func() bool {
		return testsupport.Exists(root + dir + "/theirs/ready")
	})
	test.True(t, testsupport.Exists(root+dir+"/target/file"), test.Sprint("its mount is missing"))
	must.False(t, testsupport.Exists(dir+"/target/file"), must.Sprint("the host sees the program's mounts"))
	test.False(t, testsupport.Exists(dir+"/theirs/ready"), test.Sprint("the host sees the program's mounts"))
	must.NoError(t, unix.Mount("later", dir+"/later", "tmpfs", 0, ""))
	must.NoError(t, os.WriteFile(dir+"/later/file", nil, 0o644))
	must.NoError(t, unix.Mount("later", "/dev/bus/usb", "tmpfs", 0, ""))
	must.NoError(t, os.WriteFile("/dev/bus/usb/file", nil, 0o644))
	must.True(t, testsupport.Exists(root+dir+"/later/file"), must.Sprint("the host's later mount is missing"))
	test.True(t, testsupport.Exists(root+"/dev/bus/usb/file"), test.Sprint("the host's later mount is missing"))
	must.NoError(t, unix.Unmount("/dev/bus/usb", 0))
	must.NoError(t, unix.Unmount(dir+"/later", 0))
	must.False(t, testsupport.Exists(root+dir+"/later/file"), must.Sprint("a mount that the host removed remains"))
	test.False(t, testsupport.Exists(root+"/dev/bus/usb/file"), test.Sprint("a mount that the host removed remains"))
}

func TestMounts_AppearInTheTask(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"/source/sub", "/target", "/careful"} {
		must.NoError(t, os.MkdirAll(dir+sub, 0o755))
	}
	must.NoError(t, os.WriteFile(dir+"/source/file", []byte("of the source"), 0o644))
	must.NoError(t, os.WriteFile(dir+"/empty", nil, 0o644))
	must.NoError(t, os.Symlink(dir+"/target", dir+"/link"))
	for _, row := range []struct {
		name   string
		given  []any
		script string
		want   string
	}{
		{"a directory", []any{task.Mount{Source: dir + "/source", Target: dir + "/target"}},
			"cd " + dir + "/target && cat file && touch new && rm new", "of the source"},
		{"a file", []any{task.Mount{Source: dir + "/source/file", Target: dir + "/empty"}},
			"cat " + dir + "/empty", "of the source"},
		{"a read-only directory", []any{task.Mount{Source: dir + "/source", Target: dir + "/target", ReadOnly: true}},
			"cd " + dir + "/target || exit; cat file; touch new; echo x > file", "of the sourcetouch: cannot touch 'new': " +
				"Read-only file system\nsh: 1: cannot create file: Read-only file system\n"},
		{"a read-only file", []any{task.Mount{Source: dir + "/source/file", Target: dir + "/empty", ReadOnly: true}},
			"echo x > " + dir + "/empty", "sh: 1: cannot create " + dir + "/empty: Read-only file system\n"},
		{"read-only, and the file system's own restrictions", []any{task.Mount{Source: dir + "/careful", Target: dir +
			"/target", ReadOnly: true}},
			"grep -o ' " + dir + "/target [^ ]*' /proc/self/mountinfo", " " + dir + "/target ro,nosuid,nodev,noexec,noatime\n"},
		{"read-only leaves the source writable", []any{task.Mount{Source: dir + "/source", Target: dir + "/target",
			ReadOnly: true}},
			"cd " + dir + "/source && touch new && rm new && echo written", "written\n"},
		{"a target that is a link", []any{task.Mount{Source: dir + "/source", Target: dir + "/link"}},
			"cat " + dir + "/target/file", "of the source"},
		{"a target in /dev is created", []any{task.Mount{Source: dir + "/source", Target: "/dev/some/where"},
			task.Mount{Source: dir + "/source/file", Target: "/dev/some/file"}},
			"cat /dev/some/where/file /dev/some/file", "of the sourceof the source"},
		{"instead of a host directory in /dev", []any{task.Mount{Source: dir + "/source", Target: "/dev/bus/usb",
			ReadOnly: true}},
			"ls /dev/bus /dev/bus/usb; touch /dev/bus/usb/x", "/dev/bus:\nusb\n\n/dev/bus/usb:\nfile\nsub\ntouch: cannot " +
				"touch '/dev/bus/usb/x': Read-only file system\n"},
		{"instead of a host link in /dev", []any{task.Mount{Source: dir + "/source/file", Target: "/dev/fd"}},
			"cat /dev/fd", "of the source"},
		{"one inside the other, in any order", []any{task.Mount{Source: dir + "/careful", Target: dir + "/target/sub"},
			task.Mount{Source: dir + "/source", Target: dir + "/target"}},
			"cd " + dir + "/target && cat file && stat -f -c %T sub", "of the sourcetmpfs\n"},
		{"a source that another mount hides", []any{task.Mount{Source: dir + "/source", Target: dir + "/target"},
			task.Mount{Source: dir + "/careful", Target: dir + "/source"}},
			"cat " + dir + "/target/file", "of the source"},
		{"a device inside a mount", []any{task.Mount{Source: dir + "/source", Target: "/dev/bus/usb"},
			task.Device{HostPath: stick, TaskPath: "/dev/bus/usb/file"}},
			"stat -c %t:%T /dev/bus/usb/file", "1:5\n"},
		{"a node on a read-only mount can be written", []any{task.Mount{Source: "/dev/nomad-usb/stick",
			Target: "/dev/bus/usb", ReadOnly: true}},
			"echo x > /dev/bus/usb/tty && echo written", "written\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			ownHost(t, smallDev, func(t *testing.T) {
				must.NoError(t, unix.Mount("careful", dir+"/careful", "tmpfs",
					unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME, ""))
			})
			e := mustRun(t, with(row.script, row.given...))
			test.Eq(t, row.want, e.out)
		})
	}
}

func TestMounts_MakeADirectoryReadOnlyForTheTaskOnly(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.MkdirAll(dir+"/lib/sub", 0o777))
	must.NoError(t, os.WriteFile(dir+"/lib/file", []byte("content"), 0o666))
	must.NoError(t, os.WriteFile(dir+"/lib/program", []byte("#!/bin/sh\necho ran\n"), 0o777))
	must.NoError(t, os.Symlink("lib", dir+"/link"))
	for _, path := range []string{dir + "/lib", dir + "/link"} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			ownHost(t, smallDev)
			given := task.Mount{Source: path, Target: path, ReadOnly: true}
			script := `cd "$0"; id -u; cat file; ./program; exec 2>&1; for f in new sub/new file; do touch $f; done; rm file; mv sub sup; chmod 700 file
echo x > ` + dir + `/beside && echo beside; grep -c " /dev " /proc/self/mountinfo`
			want := "0\ncontentran\n" + strings.Join([]string{
				"touch: cannot touch 'new'", "touch: cannot touch 'sub/new'", "touch: cannot touch 'file'", "rm: cannot remove " +
					"'file'",
				"mv: cannot move 'sub' to 'sup'", "chmod: changing permissions of 'file'",
			}, ": Read-only file system\n") + ": Read-only file system\nbeside\n" +
				fmt.Sprintln(strings.Count(mountsHere(t), " /dev ")) // no private /dev
			e := mustRun(t, with(script, given).arg0(path))
			test.Eq(t, want, e.out, test.Sprintf("got\n%s\nwant", e.out))
			pid := running(t, with("sleep 600", given))
			e = mustRun(t, shell(script).in(t, pid).arg0(path))
			test.Eq(t, want, e.out, test.Sprintf("one more process got\n%s\nwant", e.out))
			must.NoError(t, os.WriteFile(dir+"/lib/file", []byte("content"), 0o666)) // the host can still write
			must.NoError(t, os.WriteFile(dir+"/lib/"+filepath.Base(path), nil, 0o666))
			test.True(t, testsupport.Exists(rootOf(pid)+dir+"/lib/"+filepath.Base(path)),
				test.Sprint("the task does not see a file that the host wrote"))
		})
	}
	_, err := run(with("true", task.Mount{Source: dir + "/gone", Target: dir + "/gone", ReadOnly: true}), nil)
	want := `mount of "` + dir + `/gone" not found`
	var e *Error
	must.True(t, errors.As(err, &e), must.Sprintf("a missing source: %+v", err))
	must.Eq(t, want, e.Message, must.Sprintf("a missing source: %+v", err))
	test.True(t, e.Temporary, test.Sprintf("a missing source: %+v", err))
}

func TestDevices_RefuseImpossiblePaths(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.MkdirAll(dir+"/sub", 0o755))
	must.NoError(t, os.WriteFile(dir+"/file", nil, 0o644))
	dev := func(host, task_ string) any { return task.Device{HostPath: host, TaskPath: task_} }
	mnt := func(source, target string) any { return task.Mount{Source: source, Target: target} }
	for _, row := range []struct {
		name      string
		given     []any
		want      string
		temporary bool
	}{
		{"unplugged", []any{dev("/dev/nomad-usb/gone/tty", "/dev/zigbee/tty")},
			`device "/dev/nomad-usb/gone/tty" not found: is the device plugged in?`, true},
		{"unplugged, at its path on the host", []any{dev("/dev/nomad-usb/gone/tty", "/dev/nomad-usb/gone/tty")},
			`device "/dev/nomad-usb/gone/tty" not found: is the device plugged in?`, true},
		{"a link to nothing", []any{dev("/dev/dangling", "/dev/zigbee/tty")},
			`device "/dev/dangling" not found: is the device plugged in?`, true},
		{"below a file", []any{dev("/dev/null/tty", "/dev/zigbee/tty")},
			`device "/dev/null/tty" not found: is the device plugged in?`, true},
		{"a mount's source is missing", []any{mnt(dir+"/gone", "/dev/bus/usb")},
			`source "` + dir + `/gone" of the device's mount at "/dev/bus/usb" not found: is the device plugged in?`, true},
		{"out of /dev through ..", []any{dev(stick, "/dev/../etc/passwd")},
			`device "` + stick + `" cannot be at "/dev/../etc/passwd": the path "/dev/../etc/passwd" is not absolute or has ` +
				`".." in it`, false},
		{"relative", []any{dev(stick, "dev/zigbee")},
			`device "` + stick + `" cannot be at "dev/zigbee": the path "dev/zigbee" is not absolute or has ".." in it`, false},
		{"empty", []any{dev("", "/dev/zigbee")},
			`device "" cannot be at "/dev/zigbee": the path "" is not absolute or has ".." in it`, false},
		{"all of /dev", []any{dev(stick, "/dev/")},
			`device "` + stick + `" cannot be at "/dev": choose a path inside that directory`, false},
		{"the root", []any{mnt(dir, "/")},
			`mount of "` + dir + `" cannot be at "/": choose a path inside that directory`, false},
		{"missing, not in /dev", []any{dev(stick, dir+"/none")},
			`device "` + stick + `" cannot be at "` + dir + `/none": that path does not exist, and device paths are ` +
				`created only below /dev`, false},
		{"a node at a directory", []any{dev(stick, dir+"/sub")},
			`device "` + stick + `" cannot be at "` + dir + `/sub": that is a directory`, false},
		{"a directory at a file", []any{mnt(dir+"/sub", dir+"/file")},
			`mount of "` + dir + `/sub" cannot be at "` + dir + `/file": that is not a directory`, false},
		{"two with one target", []any{dev(stick, "/dev/zigbee/tty"), dev("/dev/ttyUSB0", "/dev/zigbee/tty")},
			`device "` + stick + `" cannot be at "/dev/zigbee/tty": "/dev/ttyUSB0" has the same target`, false},
		{"one inside the other", []any{dev("/dev/bus", "/dev/zigbee"), dev(stick, "/dev/zigbee/tty")},
			`device "` + stick + `" cannot be at "/dev/zigbee/tty": "/dev/zigbee" is the target of device "/dev/bus"`, false},
		{"each at the other's path", []any{dev("/dev/ttyUSB0", "/dev/zero"), dev("/dev/zero", "/dev/ttyUSB0")},
			`device "/dev/zero" cannot be at "/dev/ttyUSB0": its source is hidden by "/dev/ttyUSB0" at "/dev/zero"`, false},
		{"hidden by a mount", []any{dev("/dev/bus/usb/001/004", "/dev/zigbee/usb"), mnt(dir, "/dev/bus")},
			`device "/dev/bus/usb/001/004" cannot be at "/dev/zigbee/usb": its source is hidden by "` + dir +
				`" at "/dev/bus"`, false},
		{"in a file system inside /dev", []any{dev(stick, "/dev/shm/zigbee")},
			`no device or mount can be created inside "/dev/shm", which is a separate file system`, false},
		{"missing in a mount", []any{mnt(dir, "/dev/bus/usb"), dev(stick, "/dev/bus/usb/001/004")},
			`device "` + stick + `" cannot be at "/dev/bus/usb/001/004": that path does not exist, and device paths are ` +
				`created only below /dev`, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			ownHost(t, smallDev, func(t *testing.T) { must.NoError(t, os.Symlink("nowhere", "/dev/dangling")) })
			before := tree(t, dir)
			_, err := run(with("echo ran", row.given...), nil)
			var e *Error
			must.True(t, errors.As(err, &e), must.Sprintf("got %+v\nwant", err))
			must.Eq(t, row.want, e.Message, must.Sprintf("got %+v\nwant", err))
			must.Eq(t, row.temporary, e.Temporary, must.Sprintf("got %+v\nwant", err))
			test.Eq(t, StageDevices, e.Stage, test.Sprintf("got %+v\nwant", err))
			test.Eq(t, before, tree(t, dir), test.Sprintf("files were\n%s\nand are", before))
		})
	}
}

// A task can replace the path of a mount by a link to any place, but the mount is made only in the task's namespace.
func TestDevices_LinksOfATaskChangeNothingOnTheHost(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.Mkdir(dir+"/source", 0o755))
	must.NoError(t, os.Mkdir(dir+"/precious", 0o755))
	must.NoError(t, os.WriteFile(dir+"/precious/file", []byte("precious"), 0o644))
	must.NoError(t, os.Symlink(dir+"/precious", dir+"/way"))
	ownHost(t, smallDev, func(t *testing.T) { must.NoError(t, os.Symlink(dir+"/precious", "/dev/way")) })
	mustRun(t, with("echo changed > "+dir+"/way/file; ls "+dir+"/precious",
		task.Mount{Source: dir + "/source", Target: dir + "/way"}, task.Device{HostPath: stick, TaskPath: "/dev/way/file"}))
	b, _ := os.ReadFile(dir + "/precious/file")
	test.Eq(t, "precious", string(b), test.Sprintf("the host's file is %q", b))
	test.True(t, testsupport.Exists(dir+"/source/file"), test.Sprint("the task wrote elsewhere"))
}

func TestDevices_AreAccessibleToTheUsersGroups(t *testing.T) {
	ownHost(t, smallDev)
	for _, row := range []struct {
		groups []uint32
		want   string
	}{
		{[]uint32{4242}, "written\n"},
		{nil, "sh: 1: cannot create /dev/zigbee/tty: Permission denied\n"},
	} {
		spec := with("echo hello > /dev/zigbee/tty && echo written", task.Device{HostPath: stick,
			TaskPath: "/dev/zigbee/tty"})
		spec.Command.User = &task.User{UID: 65534, GID: 65534, Groups: row.groups}
		e := mustRun(t, spec)
		test.Eq(t, row.want, e.out, test.Sprintf("groups %v", row.groups))
	}
}

func TestDevices_TerminalWorksAtItsPath(t *testing.T) {
	ownHost(t)
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must.NoError(t, err)
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must.NoError(t, err)
	must.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	pts := fmt.Sprintf("/dev/pts/%d", n)
	must.NoError(t, os.Chown(pts, 65534, 65534))
	link := filepath.Join(t.TempDir(), "tty")
	must.NoError(t, os.Symlink(pts, link))
	must.NoError(t, os.Chmod(filepath.Dir(link), 0o755))
	must.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(link)), 0o755))
	spec := with(`exec 3<>/dev/zigbee/tty; stty -F /dev/zigbee/tty raw -echo; echo ready >&3; read -r line <&3; echo `+
		`"got $line" >&3; sleep 600`,
		task.Device{HostPath: link, TaskPath: "/dev/zigbee/tty"})
	spec.Command.User = &task.User{UID: 65534, GID: 65534}
	running(t, spec)
	expect := func(want string) {
		t.Helper()
		b := make([]byte, 0, 100)
		for !strings.Contains(string(b), want) {
			n, err := master.Read(b[len(b):cap(b)])
			must.NoError(t, err, must.Sprintf("read %q, %v; want %q", b, err, want))
			b = b[:len(b)+n]
		}
	}
	expect("ready\n")
	_, err = master.WriteString("hello\n")
	must.NoError(t, err)
	expect("got hello\n")
}

func TestSession_SeesTheTasksMounts(t *testing.T) {
	ownHost(t, smallDev)
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(dir+"/source", []byte("mounted\n"), 0o644))
	must.NoError(t, os.WriteFile(dir+"/target", nil, 0o644))
	pid := running(t, with("sleep 600", task.Device{HostPath: stick, TaskPath: "/dev/zigbee/tty"},
		task.Mount{Source: dir + "/source", Target: dir + "/target"}))
	spec := shell("readlink /dev/zigbee/tty /proc/self/ns/mnt; pwd; id -u; cat "+dir+"/target").in(t, pid)
	spec.Command.Dir = "/usr"
	e := mustRun(t, spec)
	test.Eq(t, stick+"\n"+namespaceOf(t, pid)+"\n/usr\n0\nmounted\n", e.out)
}

func namespaceOf(t *testing.T, pid int) string {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	must.NoError(t, err)
	return ns
}

// A task may mount over any path, including files that the launcher writes as root when it adds a process to the task.
func TestSession_WritesNothingAsRootInTheTasksMounts(t *testing.T) {
	ownHost(t, smallDev)
	pid := running(t, with(`mount -t tmpfs fake /proc && mkdir /proc/self && echo untouched > `+
		`/proc/self/oom_score_adj && cp /proc/self/oom_score_adj /proc/self/comm && touch /dev/ready && exec sleep 600`,
		task.Device{HostPath: stick, TaskPath: "/dev/zigbee/tty"}))
	testsupport.Eventually(t, "the task has mounted", func() bool {
		return testsupport.Exists(rootOf(pid) + "/dev/ready")
	})
	spec := shell("cat /proc/self/oom_score_adj /proc/self/comm").in(t, pid)
	spec.Command.User = &task.User{UID: 65534, GID: 65534}
	spec.Command.OOMScoreAdj = 7
	e := mustRun(t, spec)
	test.Eq(t, "untouched\nuntouched\n", e.out)
}

func TestDev_BindMountsNodesThatItCannotMake(t *testing.T) {
	ownHost(t, smallDev)
	const capMknod = 27
	must.NoError(t, unix.Prctl(unix.PR_CAPBSET_DROP, capMknod, 0, 0, 0)) // for this thread, which ends with the test
	pid := running(t, with("sleep 600", task.Device{HostPath: stick, TaskPath: "/dev/zigbee/tty"}))
	if host, its := top(t, "/dev"), top(t, rootOf(pid)+"/dev", "zigbee"); host != its {
		t.Errorf("the host has\n%s\nand the task\n%s", host, its)
	}
}

func TestDev_KeepsAnACL(t *testing.T) {
	ownHost(t, smallDev)
	must.NoError(t, os.Chmod("/dev/ttyUSB0", 0o600))
	// user::rw- user:65534:rw- group::--- mask::rw- other::---, in the format of posix_acl_xattr.h
	acl := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][3]uint32{{1, 6, ^uint32(0)}, {2, 6, 65534}, {4, 0, ^uint32(0)}, {16, 6, ^uint32(0)},
		{32, 0, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[0]))
		acl = binary.LittleEndian.AppendUint16(acl, uint16(e[1]))
		acl = binary.LittleEndian.AppendUint32(acl, e[2])
	}
	must.NoError(t, unix.Setxattr("/dev/ttyUSB0", "system.posix_acl_access", acl, 0))
	spec := with("echo x > /dev/ttyUSB0 && echo written", task.Device{HostPath: stick, TaskPath: "/dev/zigbee/tty"})
	spec.Command.User = &task.User{UID: 65534, GID: 65534}
	e := mustRun(t, spec)
	test.Eq(t, "written\n", e.out)
	must.NoError(t, os.Remove("/dev/ttyUSB0"))
	node(t, "/dev/ttyUSB0", 0o660, 1, 3)
	must.NoError(t, os.Lchown("/dev/ttyUSB0", 0, 20))
}

func TestDevices_NeedTheRightToMount(t *testing.T) {
	ownHost(t, smallDev)
	const capSysAdmin = 21
	must.NoError(t, unix.Prctl(unix.PR_CAPBSET_DROP, capSysAdmin, 0, 0, 0))
	_, err := run(with("true", task.Device{HostPath: stick, TaskPath: "/dev/zigbee/tty"}), nil)
	want := "the task cannot have its own mounts: the agent needs CAP_SYS_ADMIN"
	if err == nil || err.Error() != want || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v", err)
	}
	e := mustRun(t, with("echo ran", task.Device{HostPath: stick, TaskPath: stick}))
	test.Eq(t, "ran\n", e.out, test.Sprint("at its path on the host"))
}

// The program must not run before the supervisor has saved the namespace's identity: later, the supervisor could get it
// only from the program, which is not trusted.
func TestLaunch_WaitsUntilTheMountNamespaceIsSaved(t *testing.T) {
	ownHost(t, smallDev)
	nothingLeft(t)
	ran := filepath.Join(t.TempDir(), "ran")
	p, out, err := start(with("touch "+ran, task.Device{HostPath: stick, TaskPath: "/dev/zigbee/tty"}), nil)
	must.NoError(t, err)
	defer out.Close()
	var its string
	p.KeepMounts = func(ns *os.File) error {
		defer ns.Close()
		its = namespaceOf(t, p.PID)
		got, err := os.Readlink(fmt.Sprintf("/proc/thread-self/fd/%d", ns.Fd()))
		must.NoError(t, err)
		must.Eq(t, its, got)
		test.NotEq(t, namespaceOf(t, os.Getpid()), its)
		return errors.New("no room to save it")
	}
	var e *Error
	err = p.Started(t.Context())
	must.True(t, errors.As(err, &e), must.Sprintf("got %+v", err))
	must.Eq(t, StageDevices, e.Stage, must.Sprintf("got %+v", err))
	test.Eq(t, "no room to save it", e.Message, test.Sprintf("got %+v", err))
	if its == "" || testsupport.Exists(ran) {
		t.Errorf("the namespace is %q; ran: %v", its, testsupport.Exists(ran))
	}
}
