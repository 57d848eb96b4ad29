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

// adopters is how many tasks are taken over at the same time. Each one may have to wait for a disk.
const adopters = 8

// register adds every task on disk to s.processes, in phase found. A request for one of these tasks then waits until it
// has been taken over. Pass the result to adoptAll.
func (s *server) register() ([]*process, error) {
	states, err := s.store.List()
	if err != nil {
		return nil, err
	}
	s.launches.RLock() // adoptAll unlocks it; until then, an upgrade waits
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

// adoptAll takes over the tasks that register has found, while clients are already served. The tasks were started by a
// supervisor that was killed, or by this process before it replaced its own binary.
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

// foundTask returns a process in phase found: until takeOver examines it, only its saved state is known.
func foundTask(st *task.State) *process {
	p := newTask(st)
	p.phase, p.state = found, st
	p.identity, p.group, p.oomKills = st.Identity, st.Group, st.OOMKills
	return p
}

// adopt returns the status of a task. If the task is unknown, adopt takes it over with the state that the driver sent.
// files may contain the driver's pidfd, which has the exit status even if no supervisor ran when the task ended.
func (s *server) adopt(st *task.State, files []*os.File) (*Status, error) {
	if st == nil || st.ID == "" {
		return nil, errors.New("the adopt request has no task state")
	}
	own := foundTask(st)
	p, _ := s.enter(own)
	if p == nil && s.knownUnderAnotherID(own) { // takeUp has given the task an id that this client does not know yet
		s.mu.Lock()
		delete(s.processes, st.ID)
		s.mu.Unlock()
		close(own.begun)
		return nil, ErrUnknownTask
	}
	if p == nil {
		if _, err := s.store.Load(st.ID); err != nil {
			if err := s.store.Save(st); err != nil { // the task is watched even if this fails
				s.event(st.ID, "Failed to save the task's state: %v", err)
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

// settle records the exit of a task in phase gone. It reads the exit from the driver's pidfd in files. If files is
// empty, or if the host has restarted since the task ran, the exit is lost.
func (s *server) settle(p *process, files []*os.File) {
	p.settling.Lock()
	defer p.settling.Unlock()
	if s.phaseOf(p) != gone {
		return
	}
	e := lost("the task ended while neither its supervisor nor its plugin was running")
	if p.identity.BootID != task.BootID() {
		e = lost("the host restarted while the task was running")
	} else if len(files) == 1 {
		e = observeExit(int(files[0].Fd()))
	}
	s.finish(p, e)
}

// takeOver examines a task in phase found: it may be running, have ended, or be gone without a record of its exit. If
// the task's program never ran, takeOver returns false and removes the task in the background.
func (s *server) takeOver(p *process) bool {
	st := p.state
	begun := sync.OnceFunc(func() { close(p.begun) })
	defer func() { begun() }()
	if e := s.store.LoadExit(st.ID); e != nil {
		if isChild(p.identity) { // the exit was recorded before an upgrade, but the process was not reaped
			_, _ = unix.Wait4(p.identity.PID, nil, unix.WNOHANG, nil)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		p.exit, p.state = e, nil
		p.advance(ended)
		_, err := os.Lstat(s.store.FIFO(st.ID, collector.Streams[0]))
		if err == nil && p.output.collected() { // the FIFO still exists: the collector may not have written all output
			s.collector.Keep(collector.SpecOf(st))
		}
		close(p.output.opened)
		close(p.done)
		return true
	}
	fd, _ := st.Identity.Open() // -1 if the process is gone
	if st.Identity.PID == 0 || neverRan(s.store.Record(st.ID), fd) {
		unix.Close(fd)
		close(p.output.opened)
		finish := begun
		begun = func() {}
		go func() { // a launcher may be slow to die, and must not delay other tasks
			s.abandon(p)
			finish()
		}()
		return false
	}
	s.resumeOutput(p, st) // even if the process is gone: its last output may still be in the FIFO
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
	if st.Mounts != nil && *st.Mounts != s.mounts {
		s.mu.Lock()
		p.mounts, _ = openMounts(p.identity, st.Mounts) // the task may leave this namespace later; mountsOf can try again
		s.mu.Unlock()
	}
	s.loop.addProcess(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.state = nil
	p.advance(running)
	return true
}

// isChild reports whether a process exists, perhaps as a zombie, and is a child of this process.
func isChild(id task.Identity) bool {
	st, err := task.ReadStat(id.PID)
	return err == nil && st.Start == id.Start && id.BootID == task.BootID() && st.Parent == os.Getpid()
}

// neverRan reports whether a process never executed the task's program because the supervisor was killed during the
// launch. If the process is still a launcher, neverRan kills it. If the launcher left no record, the result is false.
func neverRan(record string, pidfd int) bool {
	progress := task.ReadProgress(record)
	if progress == task.ProgressLaunching && pidfd >= 0 {
		// a stopped process may complete an execve, but runs no instruction of the program: the second read is final
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

// processEnded is called when a pidfd reports the end of its process. It finds out how the process ended, and calls
// finish. If the process is not our child, or if a debugger traces it, this may take a while.
func (s *server) processEnded(p *process) {
	var e *task.Exit
	if p.child {
		e = childExit(p.identity.PID)
	}
	if e == nil {
		e = observeExit(p.pidfd)
	}
	if p.group.Mode == cgroup.None {
		_ = s.signalGroups(p, unix.SIGKILL) // kills the remaining processes
	}
	s.finish(p, e)
}

// finish waits until a process's output is in the log files. It then completes the exit, saves it and sends it to the
// clients. It reaps the process only when the exit is on disk, so that the kernel still has the exit status if this
// supervisor is killed before that.
func (s *server) finish(p *process, e *task.Exit) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	if p.task == nil {
		p.naming.Lock() // the id must not change until the clients have the exit
		defer p.naming.Unlock()
		s.drainOutput(p)
		if kills, err := p.group.OOMKills(); err == nil && kills > p.oomKills {
			e.OOMKills = kills
			e.OOMKilled = e.Signal != 0 || e.Code != 0
		}
		if err := s.saveExit(p, e); err != nil {
			s.event(p.id, "Failed to save the task's exit and will try again: %v", err)
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

// saveLater retries saving an exit until it is on disk or the task is destroyed. Until then, this supervisor does not
// end, and the process stays a zombie: if the supervisor is killed, the next one gets the exit from the driver's pidfd.
func (s *server) saveLater(p *process, e *task.Exit) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		time.Sleep(wait)
		p.naming.Lock()
		err := s.saveExit(p, e)
		p.naming.Unlock()
		if err == nil {
			break
		}
	}
	s.reap(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.advance(ended)
	s.busySince = time.Now()
}

// saveExit saves an exit, unless the task was destroyed and its directory removed. The caller holds p.naming.
func (s *server) saveExit(p *process, e *task.Exit) error {
	if s.phaseOf(p) == destroyed {
		return nil
	}
	return s.store.SaveExit(p.id, e)
}

// reap reaps a dead process and closes its descriptors. It may be called twice.
func (s *server) reap(p *process) {
	s.mu.Lock()
	if p.pidfd >= 0 {
		if p.child {
			if pid, err := unix.Wait4(p.identity.PID, nil, unix.WNOHANG, nil); err == nil && pid == 0 {
				go unix.Wait4(p.identity.PID, nil, 0, nil) // returns when the debugger detaches
			}
		}
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
	ns := p.mounts
	p.mounts = nil
	s.mu.Unlock()
	closeMounts(ns)
}
