// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// upgrade replaces this process's program in place (execve(2)): same pid, so the
// tasks stay its children; the listener and the lock are kept. Everything else is
// read from disk by the new program, just as after a crash.
func (s *server) upgrade(build string, files []*os.File) error {
	if len(files) != 1 {
		return errors.New("upgrade needs the new binary's file descriptor")
	}
	if !s.lockLaunches(2 * time.Second) {
		return errors.New("a task is being started or adopted: upgrade later")
	}
	defer s.launches.Unlock()
	if s.anyUnsaved() {
		return errors.New("an exit is not on disk yet: upgrade later")
	}
	s.endSessions(2 * time.Second)

	l, err := s.listener.File() // a duplicate, and blocking: inherit makes another
	if err != nil {
		return err
	}
	binary := int(files[0].Fd())
	o := options{Dir: s.store.Dir, Build: build, Idle: s.idle, Leaf: s.leaf, Listener: int(l.Fd()),
		Lock: int(s.lock.Fd())}
	env, err := o.environment()
	if err != nil {
		return err
	}
	keep := []int{o.Listener, o.Lock}
	syscall.ForkLock.Lock() // or a concurrent fork would inherit them
	defer syscall.ForkLock.Unlock()
	for _, fd := range keep {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	}
	err = unix.Exec(fmt.Sprintf("/proc/self/fd/%d", binary), o.arguments(), env)
	for _, fd := range keep {
		unix.CloseOnExec(fd)
	}
	l.Close()
	return fmt.Errorf("failed to execute the new supervisor: %w", err)
}

func (s *server) anyUnsaved() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if p.unsaved {
			return true
		}
	}
	return false
}

// endSessions ends all exec sessions: the connections they belong to end now.
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

// inherit takes the listener and the lock over from the program before.
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
