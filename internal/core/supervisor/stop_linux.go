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

// killTimeout bounds how long killed processes may take to exit: a process in uninterruptible sleep does not die
// before it wakes.
const killTimeout = 10 * time.Second

// signal sends a signal to the process, to its process group, or to the whole task. With KillAll it reads a cgroup
// without holding mu, which is safe because it signals each process in the cgroup through a pidfd.
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
	if err == nil && mode == task.KillAll { // without holding mu: this is slow if the task has many processes
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
		return fmt.Errorf("process %d of the task did not end within %v", p.identity.PID, killTimeout)
	}
}

// killAll kills every process of a task. If the task has a cgroup, killAll returns when the cgroup is empty.
func (s *server) killAll(p *process) error {
	if s.hasPassedOn(p) {
		return nil
	}
	if p.group.Mode != cgroup.None {
		return s.killGroup(p.group)
	}
	err := s.signalGroups(p, unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) { // every process has ended
		return nil
	}
	return err
}

// hasPassedOn reports whether the process of p has ended and a later run of the task uses its cgroup. In that case p
// must leave the cgroup alone. This happens if an agent is killed just after it restarted a task: the next agent
// recovers and destroys the earlier run.
func (s *server) hasPassedOn(p *process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.group.Mode == cgroup.None || p.phase.mayRun() {
		return false
	}
	for _, other := range s.processes {
		if other != p && other.task == nil && other.run == p.run && other.identity.PID != 0 && other.phase.mayRun() {
			return true
		}
	}
	return false
}

// killGroup kills the processes of a cgroup and waits until the cgroup is empty, which is nearly always immediate. It
// does not hold s.enders while it waits.
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

// killSession kills the process group that an exec session leads. The caller holds the server's mu.
func (p *process) killSession() { _ = p.signalGroup(unix.SIGKILL) }

// destroyTask kills the remaining processes of a task and removes all its files and cgroups. It is idempotent, and
// needs only the state on disk.
func (s *server) destroyTask(id string) error {
	p, err := s.find(id)
	if err != nil {
		// register has read all tasks at the start, so no process of an unknown task runs
		return s.store.Remove(id)
	}
	if p.task != nil {
		return s.kill(id)
	}
	if err := s.kill(id); err != nil && !errors.Is(err, ErrUnknownTask) {
		return err
	}
	// from here on, no session starts; killAll below kills the sessions that have started since the kill above
	p.sessions.Lock()
	defer p.sessions.Unlock()
	if s.phaseOf(p) == destroyed {
		return nil
	}
	p.naming.Lock()
	defer p.naming.Unlock()
	if s.idOf(p) != id {
		return nil // in the meantime, a launch has taken up the run and given it a new id
	}
	if err := s.killAll(p); err != nil {
		return err
	}
	s.closeOutput(p)
	s.enders.acquire()
	defer s.enders.release()
	if !s.hasPassedOn(p) {
		if err := p.group.Remove(); err != nil {
			return fmt.Errorf("failed to remove the cgroup: %w", err)
		}
	}
	record, err := s.store.Retire(id)
	if err != nil {
		return fmt.Errorf("failed to remove the task's state: %w", err)
	}
	s.reap(p) // if its exit could not be saved, p is not reaped yet
	s.mu.Lock()
	defer s.mu.Unlock()
	p.advance(destroyed)
	delete(s.processes, id)
	s.busySince = time.Now()
	s.retire(record)
	return nil
}

// maxRetired bounds the number of records kept. Fewer tasks than this end while an agent restarts.
const maxRetired = 256

// retire keeps the record of a destroyed task, and removes the oldest record beyond maxRetired. The record is needed
// if an agent is killed after DestroyTask, but before it has saved that the task ended: the plugin process of the next
// agent recovers the task and asks for its exit. The caller holds mu.
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
