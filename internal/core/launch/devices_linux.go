// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// exposed is a file or directory of the host (source) that the program finds at a path (target).
type exposed struct {
	source, target string
	device         bool
	readOnly       bool
	volume         bool // requested by a job, not by the operator
	hostToTask     bool // the mounts below the source are included

	file int    // the source, opened with O_PATH
	mode uint32 // the source's type, as in st_mode

	create bool // the target is in the private /dev, where the launcher creates it
	inside bool // the target is inside another mount
}

// exposeDevices exposes the program's devices, mounts, and private directories and files in a new mount namespace,
// which the host does not see and which ends with its last process. If the program only needs devices at their paths on
// the host, it gets no namespace: exposeDevices just checks that the devices exist.
func (l *launcher) exposeDevices() *Error {
	c := &l.spec.Command
	if len(c.Devices) == 0 && !c.OwnMounts() {
		return nil
	}
	l.enter(StageDevices)
	all, err := allExposed(c)
	if err != nil || !c.OwnMounts() {
		return err
	}
	if err := ownMounts(); err != nil {
		return err
	}
	// open it now, because a mount could hide /proc later; /proc/self is the main thread's, perhaps not this thread's
	ns, e := open(unix.AT_FDCWD, "/proc/thread-self/ns/mnt", unix.O_RDONLY)
	if e != 0 {
		return failed("open the mount namespace", e)
	}
	defer closeFD(ns)
	for i := range all {
		if err := all[i].open(); err != nil {
			return err
		}
		defer closeFD(all[i].file)
	}
	places, err := newPoints(c.TaskDir, all)
	if err != nil {
		return err
	}
	defer places.close()
	_, _ = call(unix.SYS_UMASK, 0) // so that new files get exactly the given modes; exec sets the program's umask
	var tmp *ownTmp
	if c.Isolation.Tmp {
		tmp, err = openTmp(c.TaskDir)
		if err != nil {
			return err
		}
		defer tmp.close()
	}
	if slices.ContainsFunc(all, func(g exposed) bool { return g.create }) {
		if err := makeDev(all); err != nil {
			return err
		}
	}
	if tmp != nil {
		if err := tmp.mount(places); err != nil {
			return err
		}
	}
	if c.Isolation.IPC {
		if err := mountIPC(); err != nil {
			return err
		}
	}
	if err := mountFiles(c.Isolation.Files, places); err != nil {
		return err
	}
	for _, g := range all {
		if err := g.expose(places); err != nil {
			return err
		}
	}
	if c.Isolation.PID {
		if err := mountProc(); err != nil {
			return err
		}
	}
	return handOverMounts(ns)
}

// handOverMounts sends a descriptor of the new namespace to the supervisor, and waits until the supervisor has saved
// the namespace's identity. Later, the supervisor could get it only from the task, which is not trusted.
func handOverMounts(ns int) *Error {
	b := [1]byte{statusMounts}
	rights := unix.UnixRights(ns)
	iov := unix.Iovec{Base: &b[0], Len: 1}
	msg := unix.Msghdr{Iov: &iov, Iovlen: 1, Control: &rights[0], Controllen: uint64(len(rights))}
	if _, e := call(unix.SYS_SENDMSG, statusFD, uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL); e != 0 {
		return failed("hand over the mount namespace", e)
	}
	if !readFull(b[:]) {
		exit(2) // the supervisor has died, so nothing would supervise the program
	}
	return nil
}

// allExposed lists everything that must be exposed, parents before their contents. It omits devices at their paths on
// the host, and only checks that these exist. It refuses requests that would change what the host sees, and devices
// that would hide each other.
func allExposed(c *task.Command) ([]exposed, *Error) {
	var all []exposed
	for _, d := range c.Devices {
		all = append(all, exposed{source: d.HostPath, target: d.TaskPath, device: true})
	}
	for _, m := range c.Mounts {
		all = append(all, exposed{source: m.Source, target: m.Target, readOnly: m.ReadOnly, volume: m.Volume,
			hostToTask: m.HostToTask})
	}
	for i := range all {
		g := &all[i]
		for _, p := range []*string{&g.source, &g.target} {
			if !strings.HasPrefix(*p, "/") || slices.Contains(strings.Split(*p, "/"), "..") {
				return nil, g.refused("the path " + quote(*p) + " is not absolute or has \"..\" in it")
			}
			*p = path.Clean(*p)
		}
		if g.target == "/" || g.target == "/dev" || g.target == "/proc" {
			return nil, g.refused("choose a path inside that directory")
		}
		if g.volume && (g.target == "/sys" || below(g.target, "/sys") || below(g.target, "/proc")) {
			return nil, g.refused("choose a path outside of /proc and /sys")
		}
		if g.volume && c.TaskDir != "" && (g.target == c.TaskDir || below(c.TaskDir, g.target)) {
			return nil, g.refused("this would hide the task's own directory: choose another path")
		}
		if g.device && g.source == g.target {
			if err := checkExists(g.source); err != nil {
				return nil, err
			}
		}
	}
	all = slices.DeleteFunc(all, func(g exposed) bool { return g.device && g.source == g.target })
	// targets in the task's directory come first, so that a copy of a directory above the task's directory has them
	elsewhere := func(g exposed) int {
		if c.TaskDir != "" && below(g.target, c.TaskDir) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b exposed) int {
		return cmp.Or(cmp.Compare(elsewhere(a), elsewhere(b)), strings.Compare(a.target, b.target))
	})
	for i := range all {
		g := &all[i]
		g.create = below(g.target, "/dev")
		for j := range all {
			other := &all[j]
			switch {
			case i == j:
			case g.target == other.target:
				return nil, g.refused(quote(other.source) + " has the same target")
			case other.device && below(g.target, other.target):
				return nil, g.refused(quote(other.target) + " is the target of device " + quote(other.source))
			case g.device && (g.source == other.target || below(g.source, other.target)):
				return nil, g.refused("its source is hidden by " + quote(other.source) + " at " + quote(other.target))
			case !other.device && below(g.target, other.target):
				g.create, g.inside = false, true // the other mount decides what exists there
			}
		}
	}
	return all, nil
}

func (g *exposed) String() string {
	switch {
	case g.device:
		return "device " + quote(g.source)
	case g.volume:
		return "volume " + quote(g.source)
	}
	return "mount of " + quote(g.source)
}

func (g *exposed) refused(why string) *Error {
	return refuse(unix.EINVAL, g.String()+" cannot be at "+quote(g.target)+": "+why)
}

// open opens the source. Call it before any mount, which could hide the source.
func (g *exposed) open() *Error {
	fd, e := open(unix.AT_FDCWD, g.source, unix.O_PATH)
	if e == unix.ENOENT || e == unix.ENOTDIR {
		if g.device {
			return missing("device "+quote(g.source), e)
		}
		if g.volume || g.source == g.target { // requested by the job or the driver, not by a device plugin
			return &Error{Message: g.String() + " not found", Errno: e, Temporary: true}
		}
		return missing("source "+quote(g.source)+" of the device's mount at "+quote(g.target), e)
	}
	if e != 0 {
		return failed("open "+quote(g.source), e)
	}
	g.file = fd
	var st unix.Stat_t
	if e := fstat(fd, &st); e != 0 {
		return failed("stat "+quote(g.source), e)
	}
	g.mode = st.Mode & unix.S_IFMT
	return nil
}

// checkExists checks that a device exists on the host. It ignores other errors, such as missing access:
// the program gets these when it opens the device.
func checkExists(device string) *Error {
	var st unix.Stat_t
	if e := stat(device, &st); e == unix.ENOENT || e == unix.ENOTDIR {
		return missing("device "+quote(device), e)
	}
	return nil
}

func missing(what string, e syscall.Errno) *Error {
	return &Error{Message: what + " not found: is the device plugged in?", Errno: e, Temporary: true}
}

// expose makes the source appear at the target.
func (g *exposed) expose(places *points) *Error {
	if g.create {
		if e := g.makeParents(); e != 0 {
			return failed("create a directory for "+quote(g.target), e)
		}
		var e syscall.Errno
		switch {
		case g.device:
			e = symlinkAt(g.source, unix.AT_FDCWD, g.target)
		case g.mode == unix.S_IFDIR:
			e = mkdirAt(unix.AT_FDCWD, g.target, 0o755)
		default:
			e = mknodAt(unix.AT_FDCWD, g.target, unix.S_IFREG|0o644, 0)
		}
		if e != 0 {
			return failed("create "+quote(g.target), e)
		}
		if g.device {
			return nil
		}
	}
	if g.device {
		return g.exposeDevice()
	}
	fd, err := places.open(g)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return g.attach(fd)
}

// exposeDevice makes a device appear outside /dev.
func (g *exposed) exposeDevice() *Error {
	switch e := bind(fdPath(g.file), g.target, 0); e {
	case 0:
		return nil
	case unix.ENOENT:
		return g.refused("that path does not exist, and device paths are created only below /dev")
	case unix.ENOTDIR:
		if g.mode == unix.S_IFDIR {
			return g.refused("that is not a directory")
		}
		return g.refused("that is a directory")
	default:
		return failed("mount "+quote(g.source)+" at "+quote(g.target), e)
	}
}

// makeParents creates the directories above a target in the private /dev. It can't meet a link, because makeDev has
// created only directories at these paths.
func (g *exposed) makeParents() syscall.Errno {
	for i := len("/dev/"); i < len(g.target); i++ {
		if g.target[i] != '/' {
			continue
		}
		if e := mkdirAt(unix.AT_FDCWD, g.target[:i], 0o755); e != 0 && e != unix.EEXIST {
			return e
		}
	}
	return 0
}

// ownMounts enters a new mount namespace. Later mounts and unmounts of the host propagate into it, but not the other
// way round.
func ownMounts() *Error {
	e := unshare(unix.CLONE_NEWNS)
	if e == 0 {
		e = mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "")
	}
	switch e {
	case 0:
		return nil
	case unix.EPERM, unix.EACCES:
		return refuse(e, "the task cannot have its own mounts: the agent needs CAP_SYS_ADMIN")
	default:
		return failed("create a mount namespace", e)
	}
}

// enterMounts joins the mount namespace of a running task. (The supervisor has kept a descriptor of it.) A task that
// runs as root may have mounted anything there. So the launcher, which is still root, must not use any path after this
// step: the change of user follows next.
func (l *launcher) enterMounts() *Error {
	if l.spec.MountNamespace == 0 {
		return nil
	}
	defer closeFD(mountsFD)
	e := unshare(unix.CLONE_FS) // setns(2) refuses a thread that shares its working directory with others
	if e == 0 {
		_, e = call(unix.SYS_SETNS, mountsFD, unix.CLONE_NEWNS)
	}
	if e != 0 {
		return &Error{Stage: StageDevices, Message: "failed to enter the task's mount namespace: " + e.Error(), Errno: e}
	}
	return nil
}
