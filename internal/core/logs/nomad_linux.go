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

// OpenNomadFIFO opens the task's end of a FIFO that Nomad's logmon reads (the
// StdoutPath or StderrPath of a task's config), or /dev/null where the job says
// logs { disabled = true }. The open is O_RDWR, so it does not wait for a logmon
// that has died, and output waits in the FIFO for the next one; logmon sees no
// end of file until the caller has closed it, after the task ended and Queued is
// 0 (or the task is destroyed).
//
// The FIFO lies in a directory in which tasks may write. Hence no symbolic link
// is followed, and what is opened must be a FIFO that this process's user or the
// task's made, under one name. Its owner becomes uid and gid (-1 leaves one as it is).
func OpenNomadFIFO(path string, uid, gid int) (*os.File, error) {
	if path == os.DevNull {
		return os.OpenFile(os.DevNull, os.O_RDWR, 0)
	}
	fail := func(op string, err error) (*os.File, error) {
		return nil, fmt.Errorf("failed to open fifo of nomad's logmon: %w", &os.PathError{Op: op, Path: path, Err: err})
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

	var st unix.Stat_t // looked at before it is opened, since the open of a device may do something
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
		err = unix.SetNonblock(fd, false) // the task wants a stdout that waits
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
		return errors.New("fifo has a second name")
	case int(st.Uid) != unix.Geteuid() && int(st.Uid) != uid:
		return fmt.Errorf("fifo belongs to uid %d", st.Uid)
	}
	return nil
}
