// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package landlock restricts threads with the kernel's Landlock (landlock(7)).
package landlock

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ABI returns the Landlock version that this process can use (landlock_create_ruleset(2),
// LANDLOCK_CREATE_RULESET_VERSION). It returns 0 before Linux 5.13, and if Landlock is disabled or blocked.
func ABI() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// ConfineWrites permanently prevents the calling thread and its descendants from changing files outside these
// directories. The thread also gets no_new_privs (prctl(2)). Lock the goroutine to its thread before, and never unlock
// it. Without directories or Landlock it does nothing. Before Landlock version 3 files outside can still be truncated.
func ConfineWrites(dirs ...string) error {
	abi := ABI()
	if len(dirs) == 0 || abi == 0 {
		return nil
	}
	err := confineWrites(abi, dirs)
	if err != nil {
		return fmt.Errorf("failed to confine writes by Landlock: %w", err)
	}
	return nil
}

func confineWrites(abi int, dirs []string) error {
	onFile := uint64(unix.LANDLOCK_ACCESS_FS_WRITE_FILE)
	if abi >= 3 {
		onFile |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	all := onFile | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	if abi >= 2 { // version 1 always denies links and renames between directories
		all |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	attributes := unix.LandlockRulesetAttr{Access_fs: all}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attributes)),
		unsafe.Sizeof(attributes), 0)
	if errno != 0 {
		return errno
	}
	ruleset := os.NewFile(fd, "Landlock ruleset")
	defer ruleset.Close()
	err := allow(ruleset, "/dev/null", unix.O_NOFOLLOW, onFile)
	for _, dir := range dirs {
		err = errors.Join(err, allow(ruleset, dir, unix.O_NOFOLLOW|unix.O_DIRECTORY, all))
	}
	if err != nil {
		return err
	}
	err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) // of this thread
	if err != nil {
		return err
	}
	_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset.Fd(), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// allow adds a rule to a ruleset: access is allowed at a path and below it.
func allow(ruleset *os.File, path string, flags int, access uint64) error {
	at, err := os.OpenFile(path, unix.O_PATH|flags, 0)
	if err != nil {
		return err
	}
	defer at.Close()
	fd := int32(at.Fd()) //nolint:gosec // a descriptor
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: fd}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, ruleset.Fd(), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
