// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OpenNomadFIFO opens the task's end of a FIFO that Nomad's logmon reads (StdoutPath or StderrPath of a task's config),
// or /dev/null if the job sets logs { disabled = true }. It opens the FIFO with O_RDWR: the open does not wait for a
// logmon that has died, and output stays in the FIFO for the next logmon. Close the file when the task has ended and
// Queued returns 0, or when the task is destroyed: logmon reads no end of file before that.
//
// The FIFO is in a directory that tasks can write to. So OpenNomadFIFO follows no symbolic link, and accepts only a
// FIFO that was made by this process's user or the task's user, with a single hard link. It changes the owner to uid
// and gid (-1 means no change).
func OpenNomadFIFO(path string, uid, gid int) (*os.File, error) {
	if path == os.DevNull {
		return os.OpenFile(os.DevNull, os.O_RDWR, 0)
	}
	fail := func(op string, err error) (*os.File, error) {
		return nil, fmt.Errorf("failed to open fifo of Nomad's logmon: %w", &os.PathError{Op: op, Path: path, Err: err})
	}

	dir, name := unix.AT_FDCWD, path
	if logs := filepath.Dir(path); filepath.Base(logs) == "logs" && filepath.Base(filepath.Dir(logs)) == "alloc" {
		fd, err := openLogDir(filepath.Dir(filepath.Dir(logs)))
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		dir, name = fd, filepath.Base(path)
	}

	var st unix.Stat_t // checked before the open, since opening a device may have side effects
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail("stat", err)
	}
	if err := checkNomadFIFO(&st, uid); err != nil {
		return fail("open", err)
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return fail("open", err)
	}
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = checkNomadFIFO(&st, uid)
	}
	if err == nil {
		err = unix.Fchown(fd, uid, gid)
	}
	if err == nil {
		err = unix.SetNonblock(fd, false) // a task expects a blocking stdout
	}
	if err != nil {
		unix.Close(fd)
		return fail("open", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func checkNomadFIFO(st *unix.Stat_t, uid int) error {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFIFO:
		return errors.New("not a fifo")
	case st.Nlink != 1:
		return errors.New("fifo has more than one hard link")
	case int(st.Uid) != unix.Geteuid() && int(st.Uid) != uid:
		return fmt.Errorf("fifo belongs to another user (uid %d)", st.Uid)
	}
	return nil
}
