// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package landlock restricts threads with the kernel's Landlock (landlock(7)). All its system calls return immediately.
package landlock

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Complete is the first version of Landlock that can restrict all rights of an Access (Linux 6.2). Earlier versions
// cannot prevent the truncation of files by path. Version 1 refuses all links and renames between directories.
const Complete = 3

// ABI returns the Landlock version that this process can use (landlock_create_ruleset(2),
// LANDLOCK_CREATE_RULESET_VERSION). It returns 0 before Linux 5.13, and if Landlock is disabled or blocked.
func ABI() int {
	version, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// Access is a set of rights to files (LANDLOCK_ACCESS_FS_*).
type Access uint64

// MakeDevices is the right to create device nodes. No letter of Modes includes it.
const MakeDevices Access = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK

// Modes returns the rights for letters: r reads, w writes, x executes; c creates, removes, renames and links entries of
// a directory. If dir is false, it omits the rights that apply only to directories.
func Modes(abi int, letters string, dir bool) Access {
	var a Access
	if strings.Contains(letters, "r") {
		a |= unix.LANDLOCK_ACCESS_FS_READ_FILE
		if dir {
			a |= unix.LANDLOCK_ACCESS_FS_READ_DIR
		}
	}
	if strings.Contains(letters, "w") {
		a |= unix.LANDLOCK_ACCESS_FS_WRITE_FILE
		if abi >= 3 {
			a |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
		}
	}
	if strings.Contains(letters, "x") {
		a |= unix.LANDLOCK_ACCESS_FS_EXECUTE
	}
	if strings.Contains(letters, "c") && dir {
		a |= unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
			unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
			unix.LANDLOCK_ACCESS_FS_MAKE_SYM
		if abi >= 2 {
			a |= unix.LANDLOCK_ACCESS_FS_REFER
		}
	}
	return a
}

// Ruleset is the descriptor of a Landlock ruleset, close-on-exec. The caller closes it.
type Ruleset int

// NewRuleset returns a ruleset without rules, which denies the given rights everywhere.
func NewRuleset(denied Access) (Ruleset, syscall.Errno) {
	attributes := unix.LandlockRulesetAttr{Access_fs: uint64(denied)}
	fd, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attributes)),
		unsafe.Sizeof(attributes), 0)
	return Ruleset(fd), errno
}

// Allow allows access to an open file (O_PATH suffices), and to everything below it if it is a directory. It returns
// EBADFD for a file without a path, such as a pipe: rulesets do not restrict access to such files.
func (r Ruleset) Allow(fd int, access Access) syscall.Errno {
	file := int32(fd) //nolint:gosec // a descriptor
	rule := unix.LandlockPathBeneathAttr{Allowed_access: uint64(access), Parent_fd: file}
	_, _, errno := unix.RawSyscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	return errno
}

// Restrict permanently applies the ruleset to the calling thread and its descendants. The thread needs no_new_privs
// (prctl(2)) or CAP_SYS_ADMIN.
func (r Ruleset) Restrict() syscall.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r), 0, 0)
	return errno
}

// ConfineWrites permanently prevents the calling thread and its descendants from changing files outside dirs. The
// thread also gets no_new_privs (prctl(2)). Lock the goroutine to its thread first, and never unlock it. Without
// directories or Landlock, ConfineWrites does nothing. Before Landlock version 3, files outside can still be truncated.
func ConfineWrites(dirs ...string) error {
	abi := ABI()
	if len(dirs) == 0 || abi == 0 {
		return nil
	}
	err := confineWrites(abi, dirs)
	if err != nil {
		return fmt.Errorf("failed to confine writes with Landlock: %w", err)
	}
	return nil
}

func confineWrites(abi int, dirs []string) error {
	ruleset, errno := NewRuleset(Modes(abi, "wc", true) | MakeDevices)
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(ruleset))
	err := allow(ruleset, "/dev/null", 0, Modes(abi, "w", false))
	for _, dir := range dirs {
		err = errors.Join(err, allow(ruleset, dir, unix.O_DIRECTORY, Modes(abi, "wc", true)))
	}
	if err != nil {
		return err
	}
	err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) // for this thread only
	if err != nil {
		return err
	}
	errno = ruleset.Restrict()
	if errno != 0 {
		return errno
	}
	return nil
}

// allow adds a rule for a path, which must not be a link.
func allow(ruleset Ruleset, path string, flags int, access Access) error {
	at, err := os.OpenFile(path, unix.O_PATH|unix.O_NOFOLLOW|flags, 0)
	if err != nil {
		return err
	}
	defer at.Close()
	errno := ruleset.Allow(int(at.Fd()), access)
	if errno != 0 {
		return errno
	}
	return nil
}
