// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"bytes"
	"encoding/binary"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// explain turns an error of execve(2) into a message for the job's author. The error may concern the file, a
// directory above it, or its interpreter, so explain examines all of these with the user's permissions.
func (l *launcher) explain(path string, e syscall.Errno) *Error {
	c := &l.spec.Command
	q := quote(path)
	var st unix.Stat_t
	seen := stat(path, &st)
	regular := seen == 0 && st.Mode&unix.S_IFMT == unix.S_IFREG
	var msg string
	switch {
	case e == unix.ENOENT && seen == unix.ENOENT, e == unix.ENOTDIR && seen == unix.ENOTDIR:
		msg = "command " + q + " not found"
	case seen == 0 && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		msg = q + " is a directory"
	case e == unix.ENOENT && regular:
		interp := interpreter(path)
		switch {
		case strings.HasSuffix(interp, "\r"):
			msg = "interpreter " + quote(interp) + " of " + q + " not found: the script has Windows line endings"
		case interp != "":
			msg = "interpreter " + quote(interp) + " of " + q + " not found"
		}
	case e == unix.EACCES && seen == unix.EACCES:
		msg = "command " + q + " cannot be accessed" + byUser(c.User) + ": permission denied in a directory above it"
	case e == unix.EACCES && seen == 0 && !regular:
		msg = q + " is not a regular file"
	case e == unix.EACCES && regular:
		msg = l.denied(path, &st)
	case e == unix.ENOEXEC:
		msg = q + " is not a program: no #! line and no ELF header"
		if bytes.HasPrefix(head(path), elfMagic) {
			msg = q + " is a program for another machine architecture"
		}
	case e == unix.E2BIG:
		msg = "arguments and environment are too long for the kernel: the limits are 128 KiB for each and a quarter of " +
			"the stack limit (ulimit stack) for all"
	case e == unix.ETXTBSY:
		msg = q + " is open for writing: it cannot be executed until it is closed"
	case e == unix.EAGAIN:
		msg = q + " cannot be executed" + byUser(c.User) + ": too many processes (ulimit nproc)"
	}
	if msg == "" {
		msg = "failed to execute " + q + ": " + e.Error()
	}
	return refuse(e, msg)
}

// denied explains an EACCES on a regular file that stat(2) can access.
func (l *launcher) denied(path string, st *unix.Stat_t) string {
	user, q := byUser(l.spec.Command.User), quote(path)
	if flags, e := statfs(path); e == 0 && flags&unix.ST_NOEXEC != 0 {
		return "command " + q + " is on a file system that is mounted noexec"
	}
	if st.Mode&0o111 == 0 {
		return "command " + q + " is not executable"
	}
	if mayExecute(path) != 0 {
		return "command " + q + " is not executable" + user
	}
	if interp := interpreter(path); interp != "" {
		return "interpreter " + quote(interp) + " of " + q + " is not executable" + user
	}
	if l.spec.Command.Unveil != nil {
		return "command " + q + " cannot be executed: no path of unveil allows x for it and for its interpreter"
	}
	return "command " + q + " cannot be executed" + user + ": permission denied"
}

var elfMagic = []byte("\x7fELF")

// head returns the first page of a file, which is enough to find its kind and its interpreter.
func head(path string) []byte {
	fd, e := open(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NONBLOCK)
	if e != 0 {
		return nil
	}
	defer closeFD(fd)
	b := make([]byte, 4096)
	n, e := read(fd, b)
	if e != 0 {
		return nil
	}
	return b[:n]
}

// interpreter returns the interpreter that a script's first line or a program's PT_INTERP names (execve(2), elf(5)). It
// returns "" if the first page of the file names none.
func interpreter(path string) string {
	b := head(path)
	if line, ok := bytes.CutPrefix(b, []byte("#!")); ok {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		line = bytes.Trim(line, " \t")
		if i := bytes.IndexAny(line, " \t"); i >= 0 {
			line = line[:i]
		}
		return string(line)
	}
	const ( // offsets in Elf64_Ehdr and Elf64_Phdr
		phoff, phentsize, phnum = 32, 54, 56
		offset, filesz          = 8, 32
		ptInterp                = 3
	)
	if !bytes.HasPrefix(b, elfMagic) || len(b) < 64 || b[4] != 2 || b[5] != 1 { // 64 bits, little-endian
		return ""
	}
	le := binary.LittleEndian
	at, size := le.Uint64(b[phoff:]), uint64(le.Uint16(b[phentsize:]))
	for range le.Uint16(b[phnum:]) {
		if size < 56 || at > uint64(len(b)) || at+size > uint64(len(b)) {
			return ""
		}
		ph := b[at:]
		if le.Uint32(ph) == ptInterp {
			from, n := le.Uint64(ph[offset:]), le.Uint64(ph[filesz:])
			if from > uint64(len(b)) || n > uint64(len(b))-from {
				return ""
			}
			return strings.TrimRight(string(b[from:from+n]), "\x00")
		}
		at += size
	}
	return ""
}
