// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dev builds a private /dev: a copy of the host's, in which the program's own entries will be created.
//
// Nodes and links are copied as they are at the start. Directories are bind-mounted (such as pts, shm, bus, and those
// in which a device plugin keeps its nodes), so later changes in them are visible. A directory that will contain an
// entry of the program is not mounted, but created and filled in the same way.
type dev struct {
	host uint64 // st_dev of the host's /dev

	// own contains the directories that are created, not mounted. skip contains the program's entries.
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

// copy fills the private directory at path with the entries of the host's directory. It leaves the host's directory as
// the working directory, which enterDir later changes to the program's.
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
		if e != 0 && e != unix.ENOENT { // ENOENT: another process has removed the entry
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

// copyNode copies a device node of the working directory into the directory to. It returns false for an entry that must
// be mounted instead: it is no device node, has an ACL, or something is mounted over it.
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
