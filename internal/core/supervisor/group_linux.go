// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Without cgroups, a task consists of the process groups that its main process and its exec sessions lead, as with
// raw_exec. A process that leaves its group can't be found again.

// wholeGroup is PIDFD_SIGNAL_PROCESS_GROUP of pidfd_send_signal(2), Linux 6.9. The signal then goes to the process
// group that the process leads, even if the process has been reaped.
const wholeGroup = 1 << 2

// signalGroup sends a signal to the process group that p leads, and never to a later group with the same id. The caller
// holds the server's mu, without which this process could reap p and so free the id.
func (p *process) signalGroup(sig unix.Signal) error {
	if p.pidfd < 0 {
		return unix.ESRCH
	}
	err := unix.PidfdSendSignal(p.pidfd, sig, nil, wholeGroup)
	if err != unix.EINVAL {
		return err
	}
	if !p.child && task.Dead(p.pidfd, 0) { // the parent may have reaped p: the id may belong to a later group
		return unix.ESRCH
	}
	return unix.Kill(-p.identity.PID, sig)
}

// signalGroups sends a signal to every process group of a task, and returns the error for the main process's group.
func (s *server) signalGroups(t *process, sig unix.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if p.task == t {
			_ = p.signalGroup(sig)
		}
	}
	return t.signalGroup(sig)
}
