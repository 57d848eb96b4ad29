// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// defaultPath is used for a command whose environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// program is the file that a command's Path was resolved to.
type program struct {
	path string // for execve; empty until found
	dir  string // a directory in Lookup that has the command's name, for the error
}

// findInLookup searches for the command in the directories of Lookup, and makes it executable there. It runs before
// the change of user, since the file may belong to root; if the user has no access to it, execve fails later.
func findInLookup(c *task.Command) (p program, err *Error) {
	if strings.HasPrefix(c.Path, "/") {
		p.path = c.Path
		for _, d := range c.Lookup {
			if rel, ok := strings.CutPrefix(c.Path, strings.TrimRight(d, "/")+"/"); ok {
				return p, makeExecutable(d, rel, c.User)
			}
		}
		return p, nil
	}
	for _, d := range c.Lookup {
		path := d + "/" + c.Path
		var st unix.Stat_t
		if stat(path, &st) != 0 {
			continue
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if p.dir == "" {
				p.dir = path
			}
			continue
		}
		p.path = path
		return p, makeExecutable(d, c.Path, c.User)
	}
	return p, nil
}

// findElsewhere searches for a command without a leading slash, with the user's permissions. It first searches Lookup
// again, where a volume may be mounted by now. Then it searches PATH for a bare name, or the working directory for any
// other command.
func findElsewhere(c *task.Command, p *program) *Error {
	for _, d := range c.Lookup {
		var st unix.Stat_t
		if path := d + "/" + c.Path; stat(path, &st) == 0 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			p.path = path
			return nil
		}
	}
	where := "in PATH"
	if strings.Contains(c.Path, "/") {
		var st unix.Stat_t
		e := stat(c.Path, &st)
		if e == 0 || e != unix.ENOENT && e != unix.ENOTDIR {
			p.path = c.Path // if it can't be executed, execve reports the reason
			return nil
		}
		where = "in " + quote(c.Dir)
	} else if p.path = findInPath(c); p.path != "" {
		return nil
	}
	if p.dir != "" {
		return refuse(unix.EISDIR, quote(p.dir)+" is a directory")
	}
	if len(c.Lookup) > 0 {
		where = "in the task directory or " + where
	}
	return refuse(unix.ENOENT, "command "+quote(c.Path)+" not found "+where)
}

func findInPath(c *task.Command) string {
	list := defaultPath
	for _, v := range c.Env {
		if s, ok := strings.CutPrefix(v, "PATH="); ok {
			list = s
			break
		}
	}
	denied := ""
	for dir := range strings.SplitSeq(list, ":") {
		if dir == "" {
			dir = "."
		}
		path := dir + "/" + c.Path
		var st unix.Stat_t
		if stat(path, &st) != 0 || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			continue
		}
		if mayExecute(path) == 0 {
			return path
		}
		if denied == "" {
			denied = path
		}
	}
	return denied
}

// makeExecutable sets the mode bits that allow the user to execute and read a regular file below dir (a script must be
// readable). They are often missing in artifacts and templates. The task itself may write to dir. So makeExecutable
// changes no file if dir is a link, if a link leads out of dir, or if the file has a second hard link, perhaps outside.
// It returns no error then: the file may still be executable, and execve decides.
func makeExecutable(dir, path string, u *task.User) *Error {
	d, e := open(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if e != 0 {
		return nil
	}
	defer closeFD(d)
	fd, e := openBeneath(d, path, unix.O_PATH)
	if e != 0 {
		return nil
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if fstat(fd, &st) != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 {
		return nil
	}
	want := executableBits(&st, u)
	if st.Mode&want == want {
		return nil
	}
	// chmod by the descriptor changes the file that was checked, even if its path leads to another file now
	file := "/proc/self/fd/" + strconv.Itoa(fd)
	mode := uintptr(st.Mode&0o777 | want) // without a set-user-ID bit
	if _, e := call(unix.SYS_FCHMODAT, atFDCWD, uintptr(cstr(file)), mode); e != 0 {
		return failed("make "+quote(dir+"/"+path)+" executable", e)
	}
	return nil
}

// executableBits returns the mode bits that allow the user to read and execute the file.
func executableBits(st *unix.Stat_t, u *task.User) uint32 {
	if u == nil {
		u = &task.User{UID: uint32(unix.Geteuid()), GID: uint32(unix.Getegid())}
	}
	switch {
	case u.UID == 0: // may read any file, but needs one x bit to execute it
		if st.Mode&0o111 != 0 {
			return 0
		}
		return 0o100
	case st.Uid == u.UID:
		return 0o500
	case st.Gid == u.GID:
		return 0o050
	}
	for _, g := range u.Groups {
		if st.Gid == g {
			return 0o050
		}
	}
	return 0o005
}
