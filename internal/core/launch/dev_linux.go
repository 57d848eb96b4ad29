// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dev builds a private /dev with all entries of the host's /dev, to which the program's own entries are added.
//
// Nodes and links are copied as they are at the start. The host's directories are bind-mounted, so later changes in
// them are visible (pts, shm, bus, and those in which a device plugin keeps its nodes). Only directories that contain
// an entry of the program are created.
type dev struct {
	host uint64 // st_dev of the host's /dev

	// own contains the directories that are created instead of bind-mounted, and skip the paths that are not copied.
	own, skip map[string]bool
}

func makeDev(all []exposed) *Error {
	d := dev{own: map[string]bool{}, skip: map[string]bool{}}
	for _, g := range all {
		if !g.create {
			continue
		}
		d.skip[g.target] = true
		for i := len("/dev/"); i < len(g.target); i++ {
			if g.target[i] == '/' {
				d.own[g.target[:i]] = true
			}
		}
	}
	host, e := open(unix.AT_FDCWD, "/dev", unix.O_RDONLY|unix.O_DIRECTORY)
	if e != 0 {
		return failed("open /dev", e)
	}
	defer closeFD(host)
	var st unix.Stat_t
	if e := fstat(host, &st); e != 0 {
		return failed("stat /dev", e)
	}
	d.host = st.Dev
	// small: it contains only nodes and links, and its pages count as the task's memory
	if e := mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=0755,size=1m"); e != 0 {
		return failed("mount a private /dev", e)
	}
	return d.copy(host, "/dev")
}

// copy fills the directory at path with the entries of the host's directory. Afterwards, the host's directory is the
// working directory; enterDir later changes to the program's.
func (d *dev) copy(host int, path string) *Error {
	to, e := open(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if e != 0 {
		return failed("open "+quote(path), e)
	}
	defer closeFD(to)
	names, e := list(host)
	if e == 0 {
		e = fchdir(host)
	}
	if e != 0 {
		return failed("read "+quote(path), e)
	}
	var inside []string
	for _, name := range names {
		p := path + "/" + name
		if d.skip[p] {
			continue
		}
		var st unix.Stat_t
		e := lstatAt(host, name, &st)
		switch kind := st.Mode & unix.S_IFMT; {
		case e != 0:
		case d.own[p] && kind != unix.S_IFDIR: // makeParents creates a directory here instead
		case d.own[p] && st.Dev != d.host:
			return refuse(unix.EINVAL, "no device or mount can be created inside "+quote(p)+", which is a separate file system")
		case d.own[p]:
			if e = mkdirAt(to, name, st.Mode&0o7777); e == 0 {
				e = chownAt(to, name, st.Uid, st.Gid)
			}
			inside = append(inside, name)
		default:
			var copied bool
			copied, e = d.copyNode(to, name, &st)
			if !copied {
				e = copyEntry(host, to, path, name)
			}
		}
		if e != 0 && e != unix.ENOENT { // ENOENT: removed in the meantime
			return failed("copy "+quote(p), e)
		}
	}
	for _, name := range inside {
		dir, e := open(host, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if e == unix.ENOENT {
			continue
		}
		if e != 0 {
			return failed("open "+quote(path+"/"+name), e)
		}
		err := d.copy(dir, path+"/"+name)
		closeFD(dir)
		if err != nil {
			return err
		}
	}
	return nil
}

// copyNode copies a device node of the working directory into the directory to. It returns false for an entry that
// can't be copied: another kind, a node over which something is mounted, or one with an ACL.
func (d *dev) copyNode(to int, name string, st *unix.Stat_t) (bool, syscall.Errno) {
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK || st.Dev != d.host || hasACL(name) {
		return false, 0
	}
	e := mknodAt(to, name, st.Mode, st.Rdev)
	if e == unix.EPERM { // a container may be allowed to mount, but not to create nodes
		return false, 0
	}
	if e == 0 {
		e = chownAt(to, name, st.Uid, st.Gid)
	}
	return true, e
}
