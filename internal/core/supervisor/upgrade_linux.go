// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// upgrade replaces the program of this process (execve(2)). The pid stays the same, so the tasks remain its children.
// The listener and the lock are kept; the new program reads the rest from disk, as after a crash. If the parameter
// with is set, the program gets these surroundings. The first file is the binary; the others are the namespaces.
func (s *server) upgrade(build string, with *surroundings, files []*os.File) error {
	if len(files) == 0 || with == nil && len(files) != 1 {
		return errors.New("upgrade needs the new binary's file descriptor")
	}
	if !s.lockLaunches(2 * time.Second) {
		return errors.New("a task is being started or adopted: upgrade later")
	}
	defer s.launches.Unlock()
	if s.anyUnsaved() {
		return errors.New("a task's exit is not saved yet: upgrade later")
	}
	if with != nil && with.Fixed != s.surroundings.Fixed { // checked last: on this error the client kills this process
		return fmt.Errorf("%w: %s", errUnfit, with.differences(s.surroundings))
	}
	s.endSessions(2 * time.Second)

	l, err := s.listener.File() // a duplicate, in blocking mode, for the new program
	if err != nil {
		return err
	}
	defer l.Close()
	o := options{Dir: s.store.Dir, Build: build, Idle: s.idle, Leaf: s.leaf, Surroundings: s.surroundings,
		Listener: int(l.Fd()), Lock: int(s.lock.Fd())}
	if with != nil {
		o.Surroundings = with
	}
	env, err := o.environment()
	if err != nil {
		return err
	}
	keep := []int{o.Listener, o.Lock}
	syscall.ForkLock.Lock() // otherwise, a concurrent fork would inherit the descriptors
	defer syscall.ForkLock.Unlock()
	for _, fd := range keep {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is changed by with.take and must end with this goroutine
		if with != nil {
			if err := with.take(files[1:]); err != nil {
				failed <- err
				return
			}
		}
		err := unix.Exec(fmt.Sprintf("/proc/self/fd/%d", files[0].Fd()), o.arguments(), env)
		failed <- fmt.Errorf("failed to execute the new supervisor: %w", err)
	}()
	err = <-failed
	for _, fd := range keep {
		unix.CloseOnExec(fd)
	}
	_ = unix.SetNonblock(o.Listener, true) // File and Fd cleared O_NONBLOCK, also for s.listener
	raiseNoFile()
	return err
}

// raiseNoFile raises the soft limit of open files again after a failed execve, which resets it to the initial value.
func raiseNoFile() {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: l.Max, Max: l.Max})
	}
}

func (s *server) anyUnsaved() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if p.phase == unsaved {
			return true
		}
	}
	return false
}

// endSessions kills all exec sessions, whose connections are about to end. It waits a limited time for their exits.
func (s *server) endSessions(wait time.Duration) {
	s.mu.Lock()
	var sessions []*process
	for _, p := range s.processes {
		if p.task != nil {
			p.killSession()
			sessions = append(sessions, p)
		}
	}
	s.mu.Unlock()
	timeout := time.After(wait)
	for _, p := range sessions {
		select {
		case <-p.done:
		case <-timeout:
			return
		}
	}
}

func (s *server) lockLaunches(wait time.Duration) bool {
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if s.launches.TryLock() {
			return true
		}
	}
	return false
}

// inherit takes over the listener and the lock from the previous program.
func (s *server) inherit(o options) error {
	unix.CloseOnExec(o.Listener)
	unix.CloseOnExec(o.Lock)
	s.lock = os.NewFile(uintptr(o.Lock), o.Dir)
	f := os.NewFile(uintptr(o.Listener), s.store.Socket())
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	s.listener = l.(*net.UnixListener)
	s.listener.SetUnlinkOnClose(true)
	return nil
}
