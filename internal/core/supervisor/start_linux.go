// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// startTimeout bounds how long a launcher may take to execute its program. A launcher takes this long only if a file
// system hangs. That does not delay other tasks.
const startTimeout = 60 * time.Second

// launch starts a task. If launch fails, it leaves no trace of the task. Each id is started only once: if a client that
// lost its connection repeats the request, launch returns the status of the first start.
func (s *server) launch(st *task.State) (*Status, error) {
	if st == nil || st.ID == "" {
		return nil, errors.New("the launch request has no task state")
	}
	s.launches.RLock()
	defer s.launches.RUnlock()

	p := newTask(st)
	known, earlier := s.enter(p)
	if known == nil {
		defer close(p.begun)
		known = s.takeUpOrDestroy(p, st, earlier)
	}
	if known != nil {
		s.settle(known, nil)
		return s.statusOf(known)
	}
	proc, err := s.prepare(p, st)
	if err == nil {
		err = s.collects(p, st, proc)
	}
	if err == nil {
		err = s.follow(p, proc)
	}
	if err != nil {
		s.abandon(p)
		return nil, err
	}
	s.mu.Lock()
	p.advance(running)
	s.mu.Unlock()
	return &Status{Running: true, State: st}, nil
}

// enter adds a new process to s.processes and returns the earlier runs of the same task, which may still be starting.
// If a process with this id was already started or adopted, enter only returns that process.
func (s *server) enter(p *process) (known *process, earlier []*process) {
	for {
		s.mu.Lock()
		other := s.processes[p.id]
		if other == nil {
			for _, other := range s.processes {
				if other.task == nil && other.run == p.run {
					earlier = append(earlier, other)
				}
			}
			s.processes[p.id] = p
			p.log()
			s.mu.Unlock()
			return nil, earlier
		}
		pending := other.phase == starting || other.phase == found
		s.mu.Unlock()
		if !pending {
			return other, nil
		}
		<-other.begun
	}
}

// prepare does the steps of a launch that need no access to the program's file system, which may hang. It returns a
// launcher that waits for its spec.
func (s *server) prepare(p *process, st *task.State) (*launch.Process, error) {
	s.starters.acquire()
	defer s.starters.release()
	if err := s.plan(p, st); err != nil {
		close(p.output.opened) // nothing was opened
		return nil, err
	}
	stdio, err := s.openOutput(p, st)
	defer wire.CloseAll(stdio[:])
	if err == nil && st.Command.OpenStdin {
		stdio[0], err = openStdin(st.Command.User)
	}
	if err != nil {
		return nil, err
	}
	spec := launch.Spec{Record: s.store.Record(st.ID)}
	if st.Command.Isolation.PID {
		init, err := s.startInit(p)
		if err != nil {
			return nil, err
		}
		defer init.Close()
		spec.Init = int(init.Fd())
	}
	proc, err := s.fork(p, &st.Command, stdio, spec)
	if err != nil {
		return nil, err
	}
	if err := s.identify(p, proc); err != nil {
		return nil, err
	}
	st.Identity = p.identity
	if err := s.store.Save(st); err != nil { // in parallel with the start of the launcher
		s.drop(proc)
		return nil, fmt.Errorf("failed to save the task's state: %w", err)
	}
	proc.KeepMounts = func(ns *os.File) error { return s.keepMounts(p, st, ns) }
	return proc, nil
}

// plan saves the intent to start a task, and creates its cgroup. The intent is on disk before the process exists:
// after a crash in between, the next supervisor finds the cgroup and removes it.
func (s *server) plan(p *process, st *task.State) error {
	err := s.store.Save(st)
	if err == nil {
		err = s.store.MarkUnclaimed(st.ID)
	}
	if err != nil {
		return fmt.Errorf("failed to save the task's state: %w", err)
	}
	err = st.Group.Create(st.Limits)
	if errors.Is(err, cgroup.ErrUnavailable) && !st.Limits.Demanded() {
		s.event(st.ID, "Limits are not enforced: %v", err)
		st.Group = cgroup.Group{Mode: cgroup.None}
	} else if err != nil {
		return fmt.Errorf("failed to set up the cgroup: %w", err)
	}
	st.OOMKills, _ = st.Group.OOMKills()
	st.LimitHits, _ = st.Group.LimitHits()
	if !st.Command.OwnMounts() { // otherwise the launcher creates a mount namespace
		st.Mounts = &s.mounts
	}
	p.group, p.oomKills = st.Group, st.OOMKills
	return nil
}

// collects waits until the collector has opened a task's log files, and records where stderr begins. On an error it
// ends the launcher.
func (s *server) collects(p *process, st *task.State, proc *launch.Process) error {
	<-p.output.opened
	err := p.output.err
	st.Output.StderrFrom = p.output.from
	if err == nil && p.output.from != (task.LogPlace{}) {
		err = s.store.Save(st)
	}
	if err != nil {
		s.drop(proc)
	}
	return err
}

// follow waits until the launcher has executed the program, and watches the process.
func (s *server) follow(p *process, proc *launch.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	defer s.forgetLauncher(proc.PID)
	if err := proc.Started(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	p.pidfd, p.child = proc.TakePidFD(), true
	s.mu.Unlock()
	s.loop.addProcess(p)
	return nil
}

// fork starts the launcher in the process's cgroup.
func (s *server) fork(p *process, cmd *task.Command, stdio [3]*os.File, spec launch.Spec) (*launch.Process, error) {
	spec.Command = *cmd
	spec.TasksFiles = p.group.TasksFiles()
	spec.NoFile = s.surroundings.Limits[unix.RLIMIT_NOFILE][0]
	var proc *launch.Process
	err := s.inGroup(p, func(dir *os.File) (err error) {
		proc, err = launch.Start(&spec, stdio, dir)
		if err == nil {
			s.mu.Lock()
			s.launchers[proc.PID] = true
			s.mu.Unlock()
		}
		return err
	})
	return proc, err
}

// inGroup calls a function that must fork one process, and prevents other forks during the call. The function gets the
// directory of the task's cgroup, or nil if it must move the process into the cgroup by its pid.
func (s *server) inGroup(p *process, start func(dir *os.File) error) error {
	dir, err := p.group.OpenDir()
	if err != nil {
		return fmt.Errorf("failed to open the cgroup: %w", err)
	}
	if dir != nil {
		defer dir.Close()
	}
	s.forks.Lock()
	defer s.forks.Unlock()
	return start(dir)
}

// startInit creates a task's pid namespace, and returns a pidfd of its init. The init ends with the task's cgroup.
func (s *server) startInit(p *process) (*os.File, error) {
	if p.group.Mode == cgroup.None {
		return nil, errors.New("isolate = [\"pid\"] can't be used: the task has no cgroup")
	}
	var init *os.File
	err := s.inGroup(p, func(dir *os.File) (err error) {
		init, err = launch.StartInit(p.group.TasksFiles(), dir)
		return err
	})
	return init, err
}

// identify records the identity of a launcher's process. On an error it ends the launcher.
func (s *server) identify(p *process, proc *launch.Process) error {
	id, err := task.Identify(proc.PID)
	if err != nil {
		s.drop(proc)
		return fmt.Errorf("failed to identify the process: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.identity = id
	return nil
}

// drop ends a launcher that must not run its program.
func (s *server) drop(proc *launch.Process) {
	proc.Kill()
	s.forgetLauncher(proc.PID)
}

func (s *server) forgetLauncher(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.launchers, pid)
}

// abandon removes what is left of a task that did not start.
func (s *server) abandon(p *process) {
	_ = s.killAll(p)
	s.closeOutput(p)
	_ = p.group.Remove()
	_ = s.store.Remove(p.id)
	s.reap(p)
	s.mu.Lock()
	delete(s.processes, p.id)
	slog.Debug("forgotten", "id", p.id)
	s.busySince = time.Now()
	s.mu.Unlock()
}

// maxSessions limits a task's concurrent exec sessions. Each session uses a process and some descriptors, and all tasks
// share the supervisor's limit of descriptors.
const maxSessions = 128

// exec starts an exec session in a running task.
func (s *server) exec(c *wire.Peer, req *request, files []*os.File) error {
	s.launches.RLock()
	defer s.launches.RUnlock()
	t, err := s.find(req.ID)
	if err != nil {
		return err
	}
	t.sessions.RLock()
	defer t.sessions.RUnlock()
	phase := s.phaseOf(t)
	if phase == destroyed {
		return ErrUnknownTask
	}
	if !phase.mayRun() || t.task != nil {
		return ErrEnded
	}
	if req.Exec == nil || len(files) != 3 {
		return fmt.Errorf("exec needs 3 file descriptors, got %d", len(files))
	}
	p := newProcess(req.Exec.Session)
	p.owner, p.task, p.group = c, t, t.group
	defer close(p.begun)
	if err := s.admit(p); err != nil {
		return err
	}
	err = s.execute(p, req, files)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.advance(running)
	if err != nil || !s.clients[c] || t.exit != nil {
		p.killSession() // if it runs
	}
	if err != nil {
		delete(s.processes, p.id)
	}
	return err
}

// admit adds a session to s.processes, if its name is free and its task has fewer than maxSessions.
func (s *server) admit(p *process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.processes[p.id] != nil {
		return fmt.Errorf("session name %q is already in use", p.id)
	}
	running := 0
	for _, other := range s.processes {
		if other.task == p.task && other.phase.mayRun() {
			running++
		}
	}
	if running >= maxSessions {
		return fmt.Errorf("the task already has %d exec sessions, the maximum: end one first", maxSessions)
	}
	s.processes[p.id] = p
	return nil
}

// execute runs a session's program and watches it.
func (s *server) execute(p *process, req *request, files []*os.File) error {
	st, err := s.store.Load(req.ID)
	if err != nil {
		return err
	}
	cmd := st.Command
	cmd.Path, cmd.Args = req.Exec.Path, req.Exec.Args
	spec := launch.Spec{TTY: req.Exec.TTY}
	if cmd.OwnMounts() || st.Mounts != nil && *st.Mounts != s.mounts {
		ns, err := s.mountsOf(p.task, st.Mounts)
		if err != nil {
			return err
		}
		defer ns.Close()
		spec.MountNamespace = int(ns.Fd())
	}
	if own := cmd.Isolation; own.IPC || own.PID || own.Hostname != "" {
		pidfd, err := s.pidfdOf(p.task)
		if err != nil {
			return err
		}
		defer pidfd.Close()
		spec.Task = int(pidfd.Fd())
	}
	cmd.Devices, cmd.Mounts, cmd.Isolation = nil, nil, task.Isolation{} // set up in the task's namespaces already
	proc, err := s.fork(p, &cmd, [3]*os.File(files), spec)
	if err != nil {
		return err
	}
	wire.CloseAll(files) // so that the client sees EOF when the session ends
	if err := s.identify(p, proc); err != nil {
		return err
	}
	return s.follow(p, proc)
}

// pidfdOf returns a pidfd of a task's main process, which the caller closes.
func (s *server) pidfdOf(p *process) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.pidfd < 0 {
		return nil, ErrEnded
	}
	return duplicate(p.pidfd, "process of a task")
}
