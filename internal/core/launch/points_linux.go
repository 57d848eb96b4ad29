// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// points opens the mount points of the program, and creates missing ones. In the task's directory, it creates them on
// the host. Elsewhere, only the program sees the new mount point: it gets a copy of the directory that lacks it. The
// copy is a file system in memory, in which every entry of the host's directory is mounted.
type points struct {
	taskDir string
	task    int             // descriptor of the task's directory, or -1 if no mount point is in it
	own     map[uint64]bool // st_dev of the file systems that were created for the program
}

// A mount is prepared at one of these paths, and then moved to its mount point in one step: if the mount point's path
// were used in several steps, it could lead elsewhere in between. Jobs can have no mounts in /proc, so nothing else is
// mounted at these paths.
const (
	stageDir  = "/proc/sys"
	stageFile = "/proc/version"
)

// maxCopied is the maximum number of entries of a directory that is copied, since each entry takes a mount.
const maxCopied = 1000

// newPoints opens the task's directory if a mount point is in it. Call it before any mount, which could hide the
// directory.
func newPoints(taskDir string, all []exposed) (*points, *Error) {
	p := &points{taskDir: taskDir, task: -1, own: map[uint64]bool{}}
	for _, g := range all {
		if taskDir != "" && below(g.target, taskDir) && p.task < 0 {
			var e syscall.Errno
			if p.task, e = open(unix.AT_FDCWD, taskDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW); e != 0 {
				return nil, failed("open the task's directory", e)
			}
		}
	}
	return p, nil
}

// moveTask opens the task's directory again, below alloc, which is another mount of the allocation's directory.
func (p *points) moveTask(alloc int) (errno syscall.Errno) {
	if p.task < 0 {
		return 0
	}
	closeFD(p.task)
	p.task, errno = open(alloc, path.Base(p.taskDir), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	return errno
}

func (p *points) close() {
	if p.task >= 0 {
		closeFD(p.task)
	}
}

// place is a directory on the path to a mount point, or the mount point itself.
type place struct {
	fd   int
	path string
	look entry

	// own: it is in the task's directory. others: users other than root can change it, or a directory above it.
	own, others bool
}

// open opens a mount point (O_PATH), and creates it if it does not exist. For a volume, it follows no link: the path
// comes from the author of the job, and a task may control directories on it.
func (p *points) open(g *exposed) (int, *Error) {
	if g.source == g.target { // the source itself, whatever is mounted over it now
		fd, e := open(unix.AT_FDCWD, fdPath(g.file), unix.O_PATH)
		if e != 0 {
			return -1, failed("open "+quote(g.source), e)
		}
		return fd, nil
	}
	if !g.volume {
		if fd, e := open(unix.AT_FDCWD, g.target, unix.O_PATH); e != unix.ENOENT {
			if e != 0 {
				return -1, failed("open "+quote(g.target), e)
			}
			return fd, nil
		}
	}
	at := place{fd: unix.AT_FDCWD, path: "/"}
	name, rest := "/", g.target[1:]
	if p.task >= 0 && below(g.target, p.taskDir) {
		at.path, at.own = p.taskDir, true
		name, rest = fdPath(p.task), g.target[len(p.taskDir)+1:]
	}
	fd, e := open(unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY)
	if e != 0 {
		return -1, failed("open "+quote(at.path), e)
	}
	at.fd = fd
	names := strings.Split(rest, "/")
	for i, name := range names {
		if err := at.see(); err != nil {
			closeFD(at.fd)
			return -1, err
		}
		next, e := open(at.fd, name, unix.O_PATH|unix.O_NOFOLLOW)
		if e == unix.ENOENT {
			return p.make(g, at, names[i:])
		}
		closeFD(at.fd)
		if e == unix.ENOTDIR {
			return -1, g.refused(quote(at.path) + " is not a directory")
		}
		if e != 0 {
			return -1, failed("open "+quote(g.target), e)
		}
		at.fd, at.path = next, strings.TrimRight(at.path, "/")+"/"+name
	}
	if err := at.see(); err != nil {
		closeFD(at.fd)
		return -1, err
	}
	if at.look.kind == unix.S_IFLNK {
		closeFD(at.fd)
		return -1, g.refused("that is a symbolic link: choose the path that it points to")
	}
	return at.fd, nil
}

// see reads the attributes of the place.
func (at *place) see() *Error {
	var e syscall.Errno
	if at.look, e = look(at.fd); e != 0 {
		return failed("stat "+quote(at.path), e)
	}
	at.others = at.others || at.look.uid != 0 || at.look.mode&0o022 != 0
	return nil
}

// make creates the missing rest of a path: names[0] in the directory at, names[1] in names[0] and so on. It returns a
// descriptor of the last one, and closes at.fd.
func (p *points) make(g *exposed, at place, names []string) (int, *Error) {
	defer func() { closeFD(at.fd) }()
	switch {
	case at.look.kind == unix.S_IFLNK:
		return -1, g.refused(quote(at.path) + " is a symbolic link: choose the path that it points to")
	case g.inside:
		return -1, g.refused("that path does not exist, and no path is created inside another mount")
	case at.own, p.own[at.look.dev]:
	case at.others:
		return -1, g.refused("that path does not exist, and is not created because users other than root can change " +
			quote(at.path) + ": choose a path in the task's directory, or one like /data")
	default:
		if err := p.copy(g, &at); err != nil {
			return -1, err
		}
	}
	for i, name := range names {
		flags := unix.O_PATH | unix.O_NOFOLLOW
		var e syscall.Errno
		if i == len(names)-1 && g.mode != unix.S_IFDIR {
			e = mknodAt(at.fd, name, unix.S_IFREG|0o644, 0)
		} else {
			e, flags = mkdirAt(at.fd, name, 0o755), flags|unix.O_DIRECTORY
		}
		next := -1
		if e == 0 || e == unix.EEXIST {
			next, e = open(at.fd, name, flags)
		}
		if e != 0 {
			return -1, failed("create "+quote(g.target), e)
		}
		closeFD(at.fd)
		at.fd = next
	}
	fd := at.fd
	at.fd = -1
	return fd, nil
}

// copy mounts a private copy of the directory at over the original. Afterwards, at.fd is a descriptor of the copy.
func (p *points) copy(g *exposed, at *place) *Error {
	host, e := open(at.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if e != 0 {
		return failed("open "+quote(at.path), e)
	}
	defer closeFD(host)
	names, e := list(host)
	if e != 0 {
		return failed("read "+quote(at.path), e)
	}
	if len(names) > maxCopied {
		return g.refused(fmt.Sprintf("that path does not exist, and is not created because %q has more than %d entries",
			at.path, maxCopied))
	}
	options := fmt.Sprintf("size=1m,mode=%o,uid=%d,gid=%d", at.look.mode, at.look.uid, at.look.gid)
	if e := mount("tmpfs", stageDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); e != 0 {
		return failed("mount a private "+at.path, e)
	}
	if e := mount("", stageDir, "", unix.MS_UNBINDABLE, ""); e != 0 { // or a bind mount of /proc would contain it
		return failed("mount a private "+at.path, e)
	}
	to, e := open(unix.AT_FDCWD, stageDir, unix.O_PATH|unix.O_DIRECTORY)
	if e != 0 {
		return failed("open a private "+at.path, e)
	}
	its, e := look(to)
	for _, name := range names {
		if e == 0 {
			e = copyEntry(host, to, stageDir, name)
		}
	}
	if e == 0 {
		e = mount("", stageDir, "", unix.MS_PRIVATE, "")
	}
	if e == 0 {
		e = mount(stageDir, fdPath(at.fd), "", unix.MS_MOVE, "")
	}
	// the copy becomes the root; the host's root stays mounted below, because that of an initramfs can't be replaced
	if e == 0 && at.path == "/" {
		if e = fchdir(to); e == 0 {
			e = chroot(".")
		}
	}
	closeFD(at.fd)
	at.fd = to
	if e != 0 {
		return failed("copy the directory "+quote(at.path), e)
	}
	p.own[its.dev] = true
	return nil
}

// copyEntry makes an entry of the directory host appear in the directory to, whose path is at. It skips an entry that
// has disappeared.
func copyEntry(host, to int, at, name string) syscall.Errno {
	fd, e := open(host, name, unix.O_PATH|unix.O_NOFOLLOW)
	if e == unix.ENOENT {
		return 0
	}
	if e != 0 {
		return e
	}
	defer closeFD(fd)
	its, e := look(fd)
	if e != 0 {
		return e
	}
	kind := uintptr(0) // for unlinkat(2)
	switch its.kind {
	case unix.S_IFLNK:
		content, e := readlinkAt(fd, "")
		if e == 0 {
			e = symlinkAt(content, to, name)
		}
		if e == 0 {
			e = chownAt(to, name, its.uid, its.gid)
		}
		return e
	case unix.S_IFDIR:
		e = mkdirAt(to, name, 0o755)
		kind = unix.AT_REMOVEDIR
	default:
		e = mknodAt(to, name, unix.S_IFREG|0o644, 0)
	}
	if e == 0 {
		e = bind(fdPath(fd), at+"/"+name, unix.MS_REC)
	}
	if e == unix.ENOENT {
		unlinkAt(to, name, kind)
		return 0
	}
	return e
}

// attach mounts the source at the mount point fd.
func (g *exposed) attach(fd int) *Error {
	point, e := look(fd)
	switch {
	case e != 0:
		return failed("stat "+quote(g.target), e)
	case g.mode == unix.S_IFDIR && point.kind != unix.S_IFDIR:
		return g.refused("that is not a directory")
	case g.mode != unix.S_IFDIR && point.kind == unix.S_IFDIR:
		return g.refused("that is a directory")
	}
	stage, recursive, more := stageDir, uintptr(0), uintptr(0)
	if g.mode != unix.S_IFDIR {
		stage = stageFile
	}
	if g.hostToTask {
		recursive = unix.MS_REC
	}
	if g.readOnly {
		more |= unix.MS_RDONLY
	}
	if g.volume {
		more |= unix.MS_NOSUID
		if !below(g.source, "/dev") { // device nodes that other tasks create in a volume must not work
			more |= unix.MS_NODEV
		}
	}
	e = bind(fdPath(g.file), stage, recursive)
	switch {
	case e != 0 || more == 0:
	case g.hostToTask:
		e = restrictAll(stage, more)
	default:
		e = restrict(stage, more)
	}
	if e == 0 && g.volume && !g.hostToTask {
		e = mount("", stage, "", unix.MS_PRIVATE, "")
	}
	if e == 0 {
		e = mount(stage, fdPath(fd), "", unix.MS_MOVE, "")
	}
	if e != 0 {
		return failed("mount "+quote(g.source)+" at "+quote(g.target), e)
	}
	return nil
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
