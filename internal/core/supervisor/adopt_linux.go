package supervisor

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// adoptAll takes over every task on disk: after a supervisor was killed, and
// after this one has replaced its own binary.
func (s *server) adoptAll() error {
	states, _, err := s.store.List()
	if err != nil {
		return err
	}
	for _, st := range states {
		s.takeOver(st)
	}
	return nil
}

// adopt makes sure that a task is known, from what its driver remembers of it if
// need be. A pidfd that the driver held tells the exit that nobody saw.
func (s *server) adopt(st *task.State, files []*os.File) (*Status, error) {
	if st == nil || st.ID == "" {
		return nil, errors.New("adopt needs a state")
	}
	s.adoption.Lock()
	defer s.adoption.Unlock()
	p, err := s.find(st.ID)
	if err != nil {
		if _, err := s.store.Load(st.ID); err != nil {
			if err := s.store.Save(st); err != nil {
				return nil, err
			}
		}
		if p = s.takeOver(st); p == nil {
			return nil, ErrUnknownTask
		}
	}
	if p.gone && !p.ended() {
		e := lost("it ended while neither its supervisor nor its driver was there to see it")
		if p.identity.BootID != task.BootID() {
			e = lost("the host was restarted while it ran")
		} else if len(files) == 1 {
			e = observeExit(p.identity, int(files[0].Fd()))
		}
		s.finish(p, e)
	}
	return s.statusOf(p)
}

// takeOver makes a process of what is on disk: one that runs, one that has
// ended, or one that is gone with nobody to tell how. It returns nil, having
// cleared up, for a task that was never really started.
func (s *server) takeOver(st *task.State) *process {
	p := newProcess(st.ID)
	p.run = runOf(st)
	p.identity, p.group, p.oomKills, p.output = st.Identity, st.Group, st.OOMKills, output{st.Output, st.Task}
	if p.exit = s.store.LoadExit(st.ID); p.exit != nil {
		close(p.done)
	}
	s.mu.Lock()
	s.processes[p.id] = p
	s.mu.Unlock()
	if p.exit != nil {
		return p
	}
	if st.Identity.PID == 0 {
		s.abandon(p)
		return nil
	}
	fd, err := unix.PidfdOpen(st.Identity.PID, 0)
	if err == nil && !st.Identity.Alive() { // asked after the open: the pidfd is of this very process
		unix.Close(fd)
		err = unix.ESRCH
	}
	p.gone = err != nil
	s.reopenOutput(p, st.Output, st.Command.User) // also of one that is gone: its last words may still be in the pipe
	if p.gone {
		s.drainStreams(p)
		return p
	}
	if now, err := task.ReadStat(st.Identity.PID); err == nil && now.Parent == os.Getpid() {
		p.child = true
	}
	if p.group.Mode == cgroup.None {
		becomeSubreaper()
	}
	p.pidfd = fd
	for _, str := range p.streams {
		s.loop.addStream(str)
	}
	if err := s.loop.addProcess(p); err != nil {
		s.event(p.id, "The task can't be watched: %v", err)
	}
	return p
}

// processEnded is called by the event loop when a pidfd says that the process is
// dead. It does not block.
func (s *server) processEnded(p *process) {
	if p.child && (p.task != nil || p.group.Mode != cgroup.None) {
		s.mu.Lock()
		e, err := reap(p.identity.PID)
		unix.Close(p.pidfd)
		p.pidfd = -1
		s.mu.Unlock()
		if err != nil {
			e = lost("wait4: " + err.Error())
		}
		if len(p.held) > 0 {
			go s.finish(p, e) // waits for Nomad's logmon to read the rest
		} else {
			s.finish(p, e)
		}
		return
	}
	go func() { // rare, and may take a while
		var e *task.Exit
		if p.child {
			// before the main process is reaped its pid still keeps the tree's place
			s.mu.Lock()
			e, _ = reap(p.identity.PID)
			s.mu.Unlock()
		} else {
			e = observeExit(p.identity, p.pidfd)
		}
		s.mu.Lock()
		unix.Close(p.pidfd)
		p.pidfd = -1
		s.mu.Unlock()
		if p.group.Mode == cgroup.None {
			err := s.killOrphans()
			if !p.child {
				err = killMarked(p.run)
			}
			if err != nil {
				s.event(p.id, "%v", err)
			}
		}
		if e == nil {
			e = lost("its exit status was taken by another")
		}
		s.finish(p, e)
	}()
}

// finish completes what is known of an exit, once the output that was written
// before it is in the log files, and tells.
func (s *server) finish(p *process, e *task.Exit) {
	if p.task == nil {
		s.drainStreams(p)
		if kills, err := p.group.OOMKills(); err == nil && kills > p.oomKills {
			e.OOMKills = kills
			e.OOMKilled = e.Signal != 0 || e.Code != 0
		}
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	s.publish(p, e)
}

// killOrphans kills what ended tasks without a cgroup left behind. No launcher
// may be forked meanwhile: it would look like such a process.
func (s *server) killOrphans() error {
	s.forks.Lock()
	defer s.forks.Unlock()
	known := map[int]bool{}
	s.mu.Lock()
	for _, p := range s.processes {
		if p.identity.PID != 0 && !p.ended() {
			known[p.identity.PID] = true
		}
	}
	for pid := range s.launchers {
		known[pid] = true
	}
	s.mu.Unlock()
	return killOrphans(known)
}
