// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// This file mounts the program's private directories and files (task.Isolation). They are mounted after the private
// /dev, and before devices and mounts, whose paths can be inside the private directories.

// ownTmp is the directory of a program's temporary files, which is in its task's directory.
type ownTmp struct {
	exposed
	allocDir string // the directory above the task's directory
	alloc    int    // allocDir, opened with O_PATH
}

var tmpDirs = []string{"/tmp", "/var/tmp"}

// openTmp opens the directory, or creates it. It runs before any mount, which could hide the directory. It follows no
// link, because an earlier run of the task may have left one.
func openTmp(taskDir string) (*ownTmp, *Error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	t := &ownTmp{allocDir: path.Dir(taskDir)}
	var e syscall.Errno
	t.alloc, e = open(unix.AT_FDCWD, t.allocDir, flags)
	if e != 0 {
		return nil, failed("open the allocation's directory", e)
	}
	name := path.Base(taskDir) + "/tmp"
	dir, e := open(t.alloc, path.Base(taskDir), flags)
	if e == 0 {
		defer closeFD(dir)
		t.file, e = open(dir, "tmp", flags)
	}
	if e == unix.ENOENT && dir >= 0 {
		e = mkdirAt(dir, "tmp", 0o1777)
		if e == 0 {
			t.file, e = open(dir, "tmp", flags)
		}
	}
	if e != 0 {
		closeFD(t.alloc)
		return nil, failed("open the directory "+quote(name)+" of the allocation", e)
	}
	e = t.own()
	if e != 0 {
		t.close()
		return nil, failed("change the owner and mode of the directory "+quote(name)+" of the allocation", e)
	}
	// like a volume, it is mounted nosuid and nodev
	t.source, t.volume, t.mode = taskDir+"/tmp", true, unix.S_IFDIR
	return t, nil
}

// own gives the directory the owner and mode of the host's /tmp. Programs that run as root rely on both to keep other
// users from replacing their files.
func (t *ownTmp) own() syscall.Errno {
	_, e := call(unix.SYS_FCHOWNAT, uintptr(t.file), uintptr(cstr("")), 0, 0, unix.AT_EMPTY_PATH)
	if e == 0 {
		_, e = call(unix.SYS_FCHMODAT, atFDCWD, uintptr(cstr(fdPath(t.file))), 0o1777)
	}
	return e
}

func (t *ownTmp) close() {
	closeFD(t.file)
	closeFD(t.alloc)
}

// mount mounts the directory in place of the host's directories in tmpDirs.
func (t *ownTmp) mount(places *points) *Error {
	for _, place := range tmpDirs {
		point, e := open(unix.AT_FDCWD, place, unix.O_PATH|unix.O_DIRECTORY)
		if e == unix.ENOENT {
			continue
		}
		if e != 0 {
			return failed("open "+place, e)
		}
		t.target = place
		err := t.attach(point)
		closeFD(point)
		if err != nil {
			return err
		}
		if below(t.allocDir, place) {
			e = t.keepAlloc(place, places)
		}
		if e != 0 {
			return failed("mount the allocation's directory in "+place, e)
		}
	}
	return nil
}

// keepAlloc mounts the allocation's directory at its usual path, which is below place and which the task's /tmp hides
// now. (An agent in development mode has its allocations in /tmp.) keepAlloc makes the directories of that path in the
// task's /tmp. It follows no link there, because the task may have put anything into its /tmp.
func (t *ownTmp) keepAlloc(place string, places *points) syscall.Errno {
	at, e := open(unix.AT_FDCWD, place, unix.O_PATH|unix.O_DIRECTORY) // the task's /tmp, which is mounted at place now
	for name := range strings.SplitSeq(t.allocDir[len(place)+1:], "/") {
		if e != 0 {
			return e
		}
		e = mkdirAt(at, name, 0o755)
		next := -1
		if e == 0 || e == unix.EEXIST {
			next, e = open(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		}
		closeFD(at)
		at = next
	}
	if e != 0 {
		return e
	}
	defer closeFD(at)
	e = bind(fdPath(t.alloc), stageDir, unix.MS_REC)
	if e != 0 {
		return e
	}
	alloc, e := open(unix.AT_FDCWD, stageDir, unix.O_PATH|unix.O_DIRECTORY)
	if e != 0 {
		return e
	}
	defer closeFD(alloc)
	e = mount(stageDir, fdPath(at), "", unix.MS_MOVE, "")
	if e == 0 {
		e = places.moveTask(alloc)
	}
	return e
}

// mountIPC mounts the file systems of the program's IPC namespace in place of the host's, if the host has them.
func mountIPC() *Error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	e := mountOver("/dev/shm", "tmpfs", flags, "mode=1777")
	if e == 0 {
		e = mountOver("/dev/mqueue", "mqueue", flags|unix.MS_NOEXEC, "")
	}
	if e != 0 {
		return failed("mount file systems of the task's IPC", e)
	}
	return nil
}

// mountProc mounts a /proc that shows the processes of the program's namespace. It is the last mount, because the ones
// before use paths in the host's /proc.
func mountProc() *Error {
	e := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if e != 0 {
		return failed("mount the task's own /proc", e)
	}
	return nil
}

func mountOver(path, kind string, flags uintptr, options string) syscall.Errno {
	point, e := open(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY)
	if e == unix.ENOENT {
		return 0
	}
	if e != 0 {
		return e
	}
	defer closeFD(point)
	return mount(kind, fdPath(point), kind, flags, options)
}

// mountFiles mounts the program's private files, read-only. Nobody can change them, because they are in a file system
// in memory that is mounted nowhere else.
func mountFiles(files []task.File, places *points) *Error {
	if len(files) == 0 {
		return nil
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	e := mount("tmpfs", stageDir, "tmpfs", flags, "size=1m,mode=0755")
	if e != 0 {
		return failed("mount the task's own files", e)
	}
	all := make([]exposed, len(files))
	for i, f := range files {
		all[i] = exposed{source: "own " + f.Path, target: f.Path, readOnly: true, mode: unix.S_IFREG}
		all[i].file, e = makeFile(stageDir+"/"+strconv.Itoa(i), f.Content)
		if e != 0 {
			return failed("create the task's own "+f.Path, e)
		}
		defer closeFD(all[i].file)
	}
	for i := range all {
		err := all[i].expose(places)
		if err != nil {
			return err
		}
	}
	// the mounts of the files keep the file system alive
	_, e = call(unix.SYS_UMOUNT2, uintptr(cstr(stageDir)), unix.MNT_DETACH)
	if e != 0 {
		return failed("unmount the task's own files", e)
	}
	return nil
}

// makeFile creates a file that everybody may read, and opens it (O_PATH).
func makeFile(path, content string) (fd int, errno syscall.Errno) {
	e := mknodAt(unix.AT_FDCWD, path, unix.S_IFREG|0o644, 0)
	if e == 0 {
		e = writeFile(path, content)
	}
	if e != 0 {
		return -1, e
	}
	return open(unix.AT_FDCWD, path, unix.O_PATH)
}
