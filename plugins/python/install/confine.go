// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confine keeps this thread, and what it starts, from changing files outside of these directories (landlock(7)). uv
// takes names of files from wheels, and 0.6.14 does not check those of console scripts. Without directories, or where
// there is no Landlock (before Linux 5.13, switched off, or kept from this process), nothing is confined.
func confine(writable []string) error {
	if len(writable) == 0 {
		return nil
	}
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return nil
	}
	onFile := uint64(unix.LANDLOCK_ACCESS_FS_WRITE_FILE)
	if version >= 3 {
		onFile |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	all := onFile | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	if version >= 2 { // before that, Landlock allows no links from one directory to another, and uv copies
		all |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	attr := unix.LandlockRulesetAttr{Access_fs: all}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("failed to confine a build: %w", errno)
	}
	ruleset := os.NewFile(fd, "Landlock ruleset")
	defer ruleset.Close()
	err := allow(ruleset, "/dev/null", unix.O_NOFOLLOW, onFile)
	for _, dir := range writable {
		err = errors.Join(err, allow(ruleset, dir, unix.O_NOFOLLOW|unix.O_DIRECTORY, all))
	}
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) // of this thread
	}
	if err == nil {
		_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset.Fd(), 0, 0)
	}
	if err == nil && errno != 0 {
		err = errno
	}
	if err != nil {
		return fmt.Errorf("failed to confine a build: %w", err)
	}
	return nil
}

// allow adds to a ruleset what is allowed at a path, and below it.
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
