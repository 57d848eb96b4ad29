// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/collector"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// adopters is how many tasks are adopted at once, each of which may need a look at
// a disk, or the death of a launcher.
const adopters = 8

// register makes every task on disk known, so that calls about one wait for its adoption.
// adoptAll must follow.
func (s *server) register() ([]*process, error) {
	states, _, err := s.store.List()
	if err != nil {
		return nil, err
	}
	s.launches.RLock() // until all are adopted: an upgrade waits
	s.mu.Lock()
	defer s.mu.Unlock()
	records, _ := os.ReadDir(s.store.Retired())
	for _, r := range records {
		s.retire(filepath.Join(s.store.Retired(), r.Name()))
	}
	var found []*process
	for _, st := range states {
		if s.processes[st.ID] == nil {
			p := foundTask(st)
			s.processes[st.ID] = p
			found = append(found, p)
		}
	}
	return found, nil
}

// adoptAll takes over every task on disk: after a supervisor was killed, and after this
// one has replaced its own binary. The supervisor serves clients meanwhile.
func (s *server) adoptAll(found []*process) {
	defer s.launches.RUnlock()
	next := make(chan *process)
	var all sync.WaitGroup
	for range min(adopters, len(found)) {
		all.Go(func() {
			for p := range next {
				s.takeOver(p)
			}
		})
	}
	for _, p := range found {
		next <- p
	}
	close(next)
	all.Wait()
}

// foundTask is a process that is known by its state only, until takeOver has examined it.
func foundTask(st *task.State) *process {
	p := newTask(st)
	p.phase, p.state = found, st
	p.identity, p.group, p.oomKills = st.Identity, st.Group, st.OOMKills
	return p
}

// adopt makes sure that a task is known, from the state that its driver has if need be.
// By a pidfd that the driver held it finds an exit that no supervisor saw.
func (s *server) adopt(st *task.State, files []*os.File) (*Status, error) {
	if st == nil || st.ID == "" {
		return nil, errors.New("adopt needs a state")
	}
	own := foundTask(st)
	p, _ := s.enter(own)
	if p == nil && s.knownUnderAnotherID(own) { // it was taken up under another id, which this client does not know yet
		s.mu.Lock()
		delete(s.processes, st.ID)
		s.mu.Unlock()
		close(own.begun)
		return nil, ErrUnknownTask
	}
	if p == nil {
		if _, err := s.store.Load(st.ID); err != nil {
			if err := s.store.Save(st); err != nil { // it is watched nevertheless
				s.event(st.ID, "failed to save the task's state: %v", err)
			}
		}
		if !s.takeOver(own) {
			return nil, ErrUnknownTask
		}
		p = own
	}
	s.reportLate(p)
	s.settle(p, files)
	return s.statusOf(p)
}

// settle finds out how a task ended that was adopted too late, by its driver's pidfd if
// there is one.
func (s *server) settle(p *process, files []*os.File) {
	p.settling.Lock()
	defer p.settling.Unlock()
	if s.phaseOf(p) != gone {
		return
	}
	e := lost("it ended while neither its supervisor nor its driver was there to see it")
	if p.identity.BootID != task.BootID() {
		e = lost("the host was restarted while it ran")
	} else if len(files) == 1 {
		e = observeExit(int(files[0].Fd()))
	}
	s.finish(p, e)
}

// takeOver finds out what a process on disk is: one that runs, one that has ended, or one
// that is gone without a record of its exit. It returns false for a task whose program
// never ran, and removes that.
func (s *server) takeOver(p *process) bool {
	st := p.state
	begun := sync.OnceFunc(func() { close(p.begun) })
	defer func() { begun() }()
	if e := s.store.LoadExit(st.ID); e != nil {
		if isChild(p.identity) { // recorded, but not reaped before the upgrade
			_, _ = unix.Wait4(p.identity.PID, nil, unix.WNOHANG, nil)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		p.exit, p.state = e, nil
		p.advance(ended)
		_, err := os.Lstat(s.store.FIFO(st.ID, collector.Streams[0]))
		if err == nil && p.output.collected() { // a collector may have the rest of its output yet
			s.collector.Keep(collector.SpecOf(st))
		}
		close(p.output.opened)
		close(p.done)
		return true
	}
	fd, _ := st.Identity.Open() // -1 if it is gone
	if st.Identity.PID == 0 || neverRan(s.store.Record(st.ID), fd) {
		unix.Close(fd)
		close(p.output.opened)
		finish := begun
		begun = func() {}
		go func() { // a launcher may take its time to die, for which no other task waits
			s.abandon(p)
			finish()
		}()
		return false
	}
	s.resumeOutput(p, st) // also of one that is gone: its last output may still be in the FIFO
	if fd < 0 {
		go s.drainOutput(p)
		s.mu.Lock()
		defer s.mu.Unlock()
		p.state = nil
		p.advance(gone)
		return true
	}
	p.child = isChild(p.identity)
	p.pidfd = fd
	if st.Mounts == nil && p.child && !st.Command.OwnMounts() { // of an earlier version, which was this very process
		st.Mounts = &s.mounts
		if err := s.store.Save(st); err != nil {
			s.event(p.id, "failed to save the task's state: %v", err)
		}
	}
	if st.Mounts != nil && *st.Mounts != s.mounts { // while the task is in it; a session gets the reason if it is not
		s.mu.Lock()
		p.mounts, _ = openMounts(p.identity, st.Mounts)
		s.mu.Unlock()
	}
	if err := s.loop.addProcess(p); err != nil {
		s.event(p.id, "The task can't be watched: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.state = nil
	p.advance(running)
	return true
}

// isChild reports whether a process is this one's child: one that is there, as a
// zombie perhaps.
func isChild(id task.Identity) bool {
	st, err := task.ReadStat(id.PID)
	return err == nil && st.Start == id.Start && id.BootID == task.BootID() && st.Parent == os.Getpid()
}

// neverRan reports whether a process never became the task: it is, or was, the launcher
// of a supervisor that was killed meanwhile. It kills one that still is. Without a record
// a process is taken for the task.
func neverRan(record string, pidfd int) bool {
	progress := task.ReadProgress(record)
	if progress == task.ProgressLaunching && pidfd >= 0 {
		// stopped, it may get to the end of an execve and not to the program's first
		// instruction: what it is now stays
		_ = unix.PidfdSendSignal(pidfd, unix.SIGSTOP, nil, 0)
		if progress = task.ReadProgress(record); progress == task.ProgressLaunching {
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
			return true
		}
		_ = unix.PidfdSendSignal(pidfd, unix.SIGCONT, nil, 0)
	}
	return progress == task.ProgressNever
}

// runs reports whether a process exists and is not a zombie.
func runs(id task.Identity) bool {
	st, err := task.ReadStat(id.PID)
	return err == nil && id.Alive() && !st.Zombie
}

// processEnded is called when a pidfd reports that the process is dead. It finds out how it
// ended, which may take a while if it is not our child, or a debugger has it.
func (s *server) processEnded(p *process) {
	var e *task.Exit
	if p.child {
		e = childExit(p.identity.PID)
	}
	if e == nil {
		e = observeExit(p.pidfd)
	}
	if p.group.Mode == cgroup.None {
		_ = s.signalGroups(p, unix.SIGKILL) // what is left of it
	}
	s.finish(p, e)
}

// finish completes what is known of an exit, once the output that was written
// before it is in the log files, records it, and sends it to the clients. The process is reaped
// after the record is on disk: if this supervisor is killed in between, the kernel still
// has the exit.
func (s *server) finish(p *process, e *task.Exit) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	if p.task == nil {
		p.naming.Lock() // until the clients know
		defer p.naming.Unlock()
		s.drainOutput(p)
		if kills, err := p.group.OOMKills(); err == nil && kills > p.oomKills {
			e.OOMKills = kills
			e.OOMKilled = e.Signal != 0 || e.Code != 0
		}
		if err := s.store.SaveExit(p.id, e); err != nil {
			s.event(p.id, "The exit can't be recorded yet: %v", err)
			s.mu.Lock()
			p.advance(unsaved)
			s.mu.Unlock()
			go s.saveLater(p, e)
			s.publish(p, e)
			return
		}
	}
	s.reap(p)
	s.publish(p, e)
}

// saveLater records an exit that could not be recorded at once. Until it is, or its task is destroyed, the process
// stays a zombie: a pidfd that its driver holds has the exit for a later supervisor. This supervisor stays, too.
func (s *server) saveLater(p *process, e *task.Exit) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		time.Sleep(wait)
		p.sessions.RLock() // or it would make the directory of a destroyed task again
		over := s.phaseOf(p) == destroyed
		if !over {
			p.naming.Lock()
			over = s.store.SaveExit(p.id, e) == nil
			p.naming.Unlock()
		}
		p.sessions.RUnlock()
		if over {
			break
		}
	}
	s.reap(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.advance(ended)
	s.busySince = time.Now()
}

// reap lets the kernel forget a dead process. It may be called twice.
func (s *server) reap(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.pidfd < 0 {
		return
	}
	if p.child {
		if pid, err := unix.Wait4(p.identity.PID, nil, unix.WNOHANG, nil); err == nil && pid == 0 {
			go unix.Wait4(p.identity.PID, nil, 0, nil) // when the debugger lets it go
		}
	}
	unix.Close(p.pidfd)
	p.pidfd = -1
	p.closeMounts()
}
