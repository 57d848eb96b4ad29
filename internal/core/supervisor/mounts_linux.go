// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// An exec session is root until it has entered its task's mount namespace. In a namespace that the task itself created,
// the task may control every file, including the loader of a set-user-ID program. A session therefore enters only the
// namespace in which the task was started: either the launcher created it and sent its descriptor, or the agent that
// requested the task was in it. A supervisor that lacks the descriptor, or that has moved to another agent's namespace,
// opens the namespace of the task's process, and uses it only if the task's saved state names it.

// Keep each error at 90 bytes or less: `nomad alloc exec` loses an error that, together with gRPC's prefix, does not
// fit into a WebSocket control frame.
var (
	errLeftMounts    = errors.New("the task's processes have left its mount namespace: restart the task")
	errUnknownMounts = errors.New("an earlier plugin version did not save the task's mount namespace: restart the task")
)

// keepMounts keeps the mount namespace that the launcher created for a task. It saves the identity of the namespace in
// the task's state, before the task's program can create another namespace.
func (s *server) keepMounts(p *process, st *task.State, ns *os.File) error {
	m, err := identifyMounts(ns)
	if err == nil {
		st.Mounts = &m
		err = s.store.Save(st)
	}
	if err != nil {
		ns.Close()
		return fmt.Errorf("failed to save the task's mount namespace: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.mounts = ns
	return nil
}

// ownMounts identifies the mount namespace of this process.
func ownMounts() (task.MountNamespace, error) {
	ns, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		return task.MountNamespace{}, err
	}
	defer ns.Close()
	return identifyMounts(ns)
}

func identifyMounts(ns *os.File) (task.MountNamespace, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return task.MountNamespace{}, err
	}
	m := task.MountNamespace{Dev: st.Dev, Inode: st.Ino}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, ns.Fd(), unix.NS_GET_MNTNS_ID, uintptr(unsafe.Pointer(&m.ID)))
	return m, nil
}

// mountsOf returns the mount namespace of a task. saved is its identity in the task's state. Close the file after use.
func (s *server) mountsOf(p *process, saved *task.MountNamespace) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.pidfd < 0 {
		return nil, ErrEnded
	}
	if p.mounts == nil {
		ns, err := openMounts(p.identity, saved)
		if err != nil {
			return nil, err
		}
		p.mounts = ns
	}
	return duplicate(int(p.mounts.Fd()), p.mounts.Name())
}

func duplicate(fd int, name string) (*os.File, error) {
	copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(copied), name), nil
}

// openMounts opens the mount namespace of a process. If it is not the saved one, openMounts returns an error.
func openMounts(id task.Identity, saved *task.MountNamespace) (*os.File, error) {
	if saved == nil {
		return nil, errUnknownMounts
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", id.PID))
	if !id.Alive() { // checked after the open, so that the namespace of a reused pid is refused
		err = ErrEnded
	} else if errors.Is(err, fs.ErrNotExist) {
		err = errLeftMounts // its main thread has ended, but other threads have not
	}
	if err == nil {
		err = checkMounts(ns, *saved)
	}
	if err != nil {
		ns.Close()
		return nil, err
	}
	return ns, nil
}

// checkMounts refuses a mount namespace that is not the saved one, or that is not owned by this process's user
// namespace.
func checkMounts(ns *os.File, saved task.MountNamespace) error {
	now, err := identifyMounts(ns)
	if err != nil {
		return err
	}
	if now != saved {
		return errLeftMounts
	}
	owner, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	if err == unix.EPERM { // its owner is outside of this process's user namespace
		return errLeftMounts
	}
	if err != nil {
		return fmt.Errorf("failed to find the owner of the task's mount namespace: %w", err)
	}
	defer unix.Close(owner)
	var its, own unix.Stat_t
	if err := unix.Fstat(owner, &its); err != nil {
		return err
	}
	if err := unix.Stat("/proc/self/ns/user", &own); err != nil {
		return err
	}
	if its.Dev != own.Dev || its.Ino != own.Ino {
		return errLeftMounts
	}
	return nil
}

// closeMounts closes the descriptor of a task's mount namespace. The namespace then ends with the last process in it,
// and the kernel unmounts its file systems. If one of them hangs, closeMounts returns after unmountTime, and a thread
// is left waiting. ns may be nil. The caller must not hold mu.
func closeMounts(ns *os.File) {
	if ns == nil {
		return
	}
	closed := make(chan struct{})
	go func() {
		ns.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(unmountTime):
	}
}

const unmountTime = time.Second
