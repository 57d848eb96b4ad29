// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// taskFiles finds and reads the files that a task's configuration names. It uses the rights of the task's user, so
// events never show the content of a file that the task cannot read.
type taskFiles struct {
	user *task.User // nil: this process's user
	dirs []string   // searched for relative names, in this order

	secrets string // the task's secrets directory, or empty
}

// find returns the path of a file or directory, and its os.Stat result.
func (f taskFiles) find(name string) (path string, info fs.FileInfo, err error) {
	candidates := []string{name}
	if !filepath.IsAbs(name) {
		candidates = nil
		for _, dir := range f.dirs {
			candidates = append(candidates, filepath.Join(dir, name))
		}
	}
	err = asUser(f.user, func() error {
		var missing error
		for _, c := range candidates {
			info, err = os.Stat(c)
			if err == nil {
				path = c
				return nil
			}
			if missing == nil || !errors.Is(err, fs.ErrNotExist) {
				missing = err
			}
		}
		return missing
	})
	if errors.Is(err, fs.ErrNotExist) && len(candidates) > 1 {
		return "", nil, fmt.Errorf("%q is neither at %s: %w", name, strings.Join(candidates, " nor at "), fs.ErrNotExist)
	}
	return path, info, err
}

// read returns the content of a regular file of at most limit bytes.
func (f taskFiles) read(name string, limit int64) ([]byte, error) {
	path, _, err := f.find(name)
	if err != nil {
		return nil, err
	}
	var content []byte
	err = asUser(f.user, func() error {
		file, err := openRegular(path)
		if err != nil {
			return err
		}
		defer file.Close()
		content, err = io.ReadAll(io.LimitReader(file, limit+1))
		return err
	})
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%q is larger than %d KiB", name, limit>>10)
	}
	return content, err
}

// openRegular opens a regular file for reading. Opening a FIFO could hang, and a device could react, so it opens the
// path with O_PATH, checks the type, and opens the same file again through /proc (open(2)).
func openRegular(path string) (*os.File, error) {
	found, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	if info, err := found.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", path))
	}
	file, err := os.Open(fmt.Sprintf("/proc/thread-self/fd/%d", found.Fd()))
	var e *fs.PathError
	if errors.As(err, &e) {
		e.Path = path
	}
	return file, err
}

// asUser calls f on a thread that has the user's file access rights (setfsuid(2)) and, unless the user is root, no
// capabilities. The thread ends with the call.
func asUser(u *task.User, f func() error) error {
	if u == nil || os.Geteuid() != 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := becomeOnThread(u); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func becomeOnThread(u *task.User) error {
	var groups unsafe.Pointer
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	// not syscall.Setgroups, which changes the groups of all threads
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0); errno != 0 {
		return fmt.Errorf("failed to switch to the groups of the task's user: %w", errno)
	}
	if _, err := unix.SetfsgidRetGid(int(u.GID)); err != nil {
		return fmt.Errorf("failed to switch to the group of the task's user: %w", err)
	}
	if _, err := unix.SetfsuidRetUid(int(u.UID)); err != nil {
		return fmt.Errorf("failed to switch to the task's user: %w", err)
	}
	// setfsuid reports no errors, so read the id back: -1 changes nothing
	if uid, _ := unix.SetfsuidRetUid(-1); uid != int(u.UID) {
		return errors.New("failed to switch to the task's user")
	}
	if u.UID == 0 {
		return nil
	}
	// with CAP_SYS_PTRACE, paths such as /proc/<pid>/root would lead into the mount namespaces of other processes
	var none [2]unix.CapUserData
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
		return fmt.Errorf("failed to drop capabilities: %w", err)
	}
	return nil
}
