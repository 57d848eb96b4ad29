// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dev makes a /dev with all entries of the host's, to which the program's own can be
// added.
//
// Nodes and links are copied as they are at the start. The host's directories are
// mounted, so that later changes in them are visible (pts, shm, bus, and those in which
// a device plugin keeps its nodes). Only directories above a path of the program's own
// are new.
type dev struct {
	host uint64 // st_dev of the host's

	// own are the directories that are not the host's but new ones, skip the names
	// in them that are not copied.
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
		return failed("look at /dev", e)
	}
	d.host = st.Dev
	// small: it is for nodes and links, and its pages are the task's memory
	if e := mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=0755,size=1m"); e != 0 {
		return failed("mount a /dev of the task's own", e)
	}
	return d.copy(host, "/dev")
}

// copy fills the directory at path from the host's. It leaves the host's as the
// working directory; enterDir comes later.
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
		case d.own[p] && kind != unix.S_IFDIR: // makes way for a directory
		case d.own[p] && st.Dev != d.host:
			return refuse(unix.EINVAL, "no device or mount can be made inside of "+quote(p)+", which is a file system of its "+
				"own")
		case d.own[p]:
			if e = mkdirAt(to, name, st.Mode&0o7777); e == 0 {
				e = chownAt(to, name, st.Uid, st.Gid)
			}
			inside = append(inside, name)
		default:
			e = d.copyEntry(to, name, p, &st)
		}
		if e != 0 && e != unix.ENOENT { // it was removed in the meantime
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

// copyEntry makes what the working directory has under the name.
func (d *dev) copyEntry(to int, name, path string, st *unix.Stat_t) syscall.Errno {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		content, e := readlinkAt(unix.AT_FDCWD, name)
		if e != 0 {
			return e
		}
		return symlinkAt(content, to, name)
	case unix.S_IFDIR:
		if e := mkdirAt(to, name, 0o755); e != 0 {
			return e
		}
		e := bind(name, path, unix.MS_REC)
		if e == unix.ENOENT {
			unlinkAt(to, name, unix.AT_REMOVEDIR)
		}
		return e
	case unix.S_IFCHR, unix.S_IFBLK:
		if st.Dev != d.host || hasACL(name) {
			break // something mounted over a node, or a node with permissions that can't be copied
		}
		e := mknodAt(to, name, st.Mode, st.Rdev)
		if e == unix.EPERM {
			break // as in a container that may mount but not make nodes
		}
		if e != 0 {
			return e
		}
		return chownAt(to, name, st.Uid, st.Gid)
	}
	if e := mknodAt(to, name, unix.S_IFREG, 0); e != 0 {
		return e
	}
	e := bind(name, path, 0)
	if e == unix.ENOENT {
		unlinkAt(to, name, 0)
	}
	return e
}
