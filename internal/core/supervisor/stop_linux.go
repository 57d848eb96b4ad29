// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// killTimeout bounds how long a killed tree may take to be gone: a process in an
// uninterruptible sleep does not die of SIGKILL before it wakes.
const killTimeout = 10 * time.Second

// signal sends a signal to the process, to its process group, or to the whole
// task. KillAll does not hold mu while it reads a cgroup: there each process has a pidfd.
func (s *server) signal(id string, sig int, mode task.KillMode) error {
	p, err := s.find(id)
	if err != nil {
		return err
	}
	num := unix.Signal(sig)
	s.mu.Lock()
	switch {
	case p.pidfd < 0:
		err = ErrEnded
	case mode == task.KillGroup:
		err = p.signalGroup(num)
	case mode != task.KillAll:
		err = unix.PidfdSendSignal(p.pidfd, num, nil, 0)
	}
	s.mu.Unlock()
	if err == nil && mode == task.KillAll { // which takes long for many processes
		if p.group.Mode == cgroup.None {
			err = s.signalGroups(p, num)
		} else {
			err = p.group.Signal(num)
		}
	}
	if errors.Is(err, unix.ESRCH) {
		return ErrEnded
	}
	return err
}

// kill ends every process of a task and returns when none is left.
func (s *server) kill(id string) error {
	p, err := s.find(id)
	if err != nil {
		return err
	}
	if p.task != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.killSession()
		return nil
	}
	if err := s.killAll(p); err != nil {
		return err
	}
	if s.phaseOf(p) == gone {
		return nil
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(killTimeout):
		return fmt.Errorf("process %d of the task does not end", p.identity.PID)
	}
}

// killAll kills every process of a task. With a cgroup, it returns when none is left.
func (s *server) killAll(p *process) error {
	if p.group.Mode != cgroup.None {
		return s.killGroup(p.group)
	}
	err := s.signalGroups(p, unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) { // all of it has ended
		return nil
	}
	return err
}

// killGroup kills a cgroup and waits until it is empty, which nearly always is at once. The
// semaphore is not held while it waits.
func (s *server) killGroup(g cgroup.Group) error {
	for wait := 100 * time.Microsecond; wait < 50*time.Millisecond; wait *= 2 {
		s.enders.acquire()
		err := g.KillOnce()
		var empty bool
		if err == nil {
			empty, err = g.Empty()
		}
		s.enders.release()
		if empty || err != nil {
			return err
		}
		time.Sleep(wait)
	}
	return g.Kill()
}

// killSession ends an exec session: its process group, which it leads. The caller holds the
// server's mu.
func (p *process) killSession() { _ = p.signalGroup(unix.SIGKILL) }

// destroyTask kills what is left of a task and removes everything of it. It is
// idempotent, and needs nothing but what is on disk.
func (s *server) destroyTask(id string) error {
	p, err := s.find(id)
	if err != nil {
		// register has read everything at the start, so what it does not know is gone
		return s.store.Remove(id)
	}
	if p.task != nil {
		return s.kill(id)
	}
	if err := s.kill(id); err != nil && !errors.Is(err, ErrUnknownTask) {
		return err
	}
	// from here on no session is started, and what was started meanwhile is killed
	p.sessions.Lock()
	defer p.sessions.Unlock()
	if s.phaseOf(p) == destroyed {
		return nil
	}
	p.naming.Lock()
	defer p.naming.Unlock()
	if s.idOf(p) != id {
		return nil // it was taken up meanwhile: nothing is left under this id
	}
	if err := s.killAll(p); err != nil {
		return err
	}
	s.closeOutput(p)
	s.enders.acquire()
	defer s.enders.release()
	if err := p.group.Remove(); err != nil {
		return fmt.Errorf("failed to remove the cgroup: %w", err)
	}
	record, err := s.store.Retire(id)
	if err != nil {
		return fmt.Errorf("failed to remove the task's state: %w", err)
	}
	s.reap(p) // one whose exit could not be recorded
	s.mu.Lock()
	defer s.mu.Unlock()
	p.advance(destroyed)
	delete(s.processes, id)
	s.busySince = time.Now()
	s.retire(record)
	return nil
}

// maxRetired is more than the number of tasks that end while an agent restarts.
const maxRetired = 256

// retire bounds the records of destroyed tasks. An agent that is killed after DestroyTask,
// before it has saved the end, recovers the task once more, with another plugin process:
// the exit must be known then. The caller holds mu.
func (s *server) retire(record string) {
	s.retiredAt = time.Now()
	if record == "" {
		return
	}
	s.retired = append(s.retired, record)
	if len(s.retired) > maxRetired {
		_ = os.Remove(s.retired[0])
		s.retired = s.retired[1:]
	}
}
