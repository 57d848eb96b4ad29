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

// exposed is one file or directory of the host that the program has at another path.
type exposed struct {
	source, target string
	device         bool
	readOnly       bool
	volume         bool // that a job asked for, and not the operator
	hostToTask     bool // with what is mounted in it

	file int    // the source (O_PATH), which is not opened itself
	mode uint32 // its type, as in st_mode

	create bool // the target is in the private /dev, and the launcher makes it
	inside bool // it is in another mount
}

// exposeDevices makes the program's devices and mounts, in a mount namespace of its own:
// the host sees nothing of it, and it ends with its last process. If nothing is at another
// path than on the host, there is no such namespace.
func (l *launcher) exposeDevices() *Error {
	c := &l.spec.Command
	if len(c.Devices) == 0 && len(c.Mounts) == 0 {
		return nil
	}
	l.enter(StageDevices)
	all, err := allExposed(c)
	if err != nil || len(all) == 0 {
		return err
	}
	if err := ownMounts(); err != nil {
		return err
	}
	// before anything is mounted that could hide /proc; and not "self", which is another thread perhaps
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
	_, _ = call(unix.SYS_UMASK, 0) // modes are exactly those asked for; exec sets the program's umask
	if slices.ContainsFunc(all, func(g exposed) bool { return g.create }) {
		if err := makeDev(all); err != nil {
			return err
		}
	}
	for _, g := range all {
		if err := g.expose(places); err != nil {
			return err
		}
	}
	return handOverMounts(ns)
}

// handOverMounts gives the supervisor the new namespace, and returns when the supervisor
// has saved which one it is. Later only the task could tell, which is not trusted.
func handOverMounts(ns int) *Error {
	b := [1]byte{statusMounts}
	rights := unix.UnixRights(ns)
	iov := unix.Iovec{Base: &b[0], Len: 1}
	msg := unix.Msghdr{Iov: &iov, Iovlen: 1, Control: &rights[0], Controllen: uint64(len(rights))}
	if _, e := call(unix.SYS_SENDMSG, statusFD, uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL); e != 0 {
		return failed("hand over the mount namespace", e)
	}
	if !readFull(b[:]) {
		exit(2) // the supervisor has died, and would not know of the program
	}
	return nil
}

// allExposed lists everything that the program has at another path than the host, parents
// before their contents. A device that is used at its own path must exist, and needs nothing
// else. allExposed refuses requests that would change what the host sees, and devices that
// would hide each other.
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
			return nil, g.refused("choose a path inside of it")
		}
		if g.volume && (g.target == "/sys" || below(g.target, "/sys") || below(g.target, "/proc")) {
			return nil, g.refused("choose a path outside of /proc and /sys")
		}
		if g.volume && c.TaskDir != "" && (g.target == c.TaskDir || below(c.TaskDir, g.target)) {
			return nil, g.refused("the task's own directory is in it: choose another path")
		}
		if g.device && g.source == g.target {
			if err := isThere(g.source); err != nil {
				return nil, err
			}
		}
	}
	all = slices.DeleteFunc(all, func(g exposed) bool { return g.device && g.source == g.target })
	// what is in the task's directory comes first: a copy of a directory above has it then
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
				return nil, g.refused(quote(other.source) + " is to be there too")
			case other.device && below(g.target, other.target):
				return nil, g.refused("the device " + quote(other.source) + " is to be at " + quote(other.target))
			case g.device && (g.source == other.target || below(g.source, other.target)):
				return nil, g.refused(quote(other.source) + " is to be at " + quote(other.target) + ", which hides it")
			case !other.device && below(g.target, other.target):
				g.create, g.inside = false, true // it is the mount that says what is there
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

// open finds the source before anything is mounted that could hide it.
func (g *exposed) open() *Error {
	fd, e := open(unix.AT_FDCWD, g.source, unix.O_PATH)
	if e == unix.ENOENT || e == unix.ENOTDIR {
		if g.device {
			return missing("device "+quote(g.source), e)
		}
		if g.source == g.target { // the driver's, not a device plugin's
			return &Error{Message: quote(g.source) + ", to be mounted in its own place, is not there", Errno: e, Temporary: true}
		}
		if g.volume {
			return &Error{Message: g.String() + " is not there", Errno: e, Temporary: true}
		}
		return missing("a device's "+quote(g.source)+", to be mounted at "+quote(g.target)+",", e)
	}
	if e != 0 {
		return failed("look at "+quote(g.source), e)
	}
	g.file = fd
	var st unix.Stat_t
	if e := fstat(fd, &st); e != 0 {
		return failed("look at "+quote(g.source), e)
	}
	g.mode = st.Mode & unix.S_IFMT
	return nil
}

// isThere is open for a device that is used at its own path. One that the agent may not
// reach is no error: the program may try it.
func isThere(device string) *Error {
	var st unix.Stat_t
	if e := stat(device, &st); e == unix.ENOENT || e == unix.ENOTDIR {
		return missing("device "+quote(device), e)
	}
	return nil
}

func missing(what string, e syscall.Errno) *Error {
	return &Error{Message: what + " is not there: is it plugged?", Errno: e, Temporary: true}
}

// expose makes it appear at its target.
func (g *exposed) expose(places *points) *Error {
	if g.create {
		if e := g.makeParents(); e != 0 {
			return failed("make a directory for "+quote(g.target), e)
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
			return failed("make "+quote(g.target), e)
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

// exposeDevice makes a device appear outside of /dev.
func (g *exposed) exposeDevice() *Error {
	switch e := bind(fdPath(g.file), g.target, 0); e {
	case 0:
		return nil
	case unix.ENOENT:
		return g.refused("it does not exist, and for a device only what is below /dev is made")
	case unix.ENOTDIR:
		if g.mode == unix.S_IFDIR {
			return g.refused("that is not a directory")
		}
		return g.refused("that is a directory")
	default:
		return failed("mount "+quote(g.source)+" at "+quote(g.target), e)
	}
}

// makeParents makes the directories above a target in the private /dev. None of
// them is a link: makeDev has put no other entry there.
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

// ownMounts enters a mount namespace of its own. What the host mounts and unmounts later
// appears here too, but not the other way round.
func ownMounts() *Error {
	e := unshare(unix.CLONE_NEWNS)
	if e == 0 {
		e = mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "")
	}
	switch e {
	case 0:
		return nil
	case unix.EPERM, unix.EACCES:
		return refuse(e, "devices and volumes cannot be given to the task: the agent may not mount (it needs CAP_SYS_ADMIN)")
	default:
		return failed("make a mount namespace", e)
	}
}

// enterMounts joins the mount namespace of a task that runs, which the supervisor has
// kept. A task of root's may have mounted in it, so that from here on no path means
// anything to root: it is for the moment before the change of user.
func (l *launcher) enterMounts() *Error {
	if l.spec.MountNamespace == 0 {
		return nil
	}
	defer closeFD(mountsFD)
	e := unshare(unix.CLONE_FS) // setns refuses one that shares its working directory with other threads
	if e == 0 {
		_, e = call(unix.SYS_SETNS, mountsFD, unix.CLONE_NEWNS)
	}
	if e != 0 {
		return &Error{Stage: StageDevices, Message: "failed to enter the task's mount namespace: " + e.Error(), Errno: e}
	}
	return nil
}
