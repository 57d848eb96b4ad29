package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strings"
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
	go s.keepOutput()
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
	s.mu.Lock()
	p := s.processes[st.ID]
	s.mu.Unlock()
	if p != nil && p.isStarting(s) {
		<-p.begun
		p, _ = s.find(st.ID)
	}
	if p == nil {
		if _, err := s.store.Load(st.ID); err != nil {
			if err := s.store.Save(st); err != nil { // it is watched all the same
				s.event(st.ID, "failed to save the task's state: %v", err)
			}
		}
		if p = s.takeOver(st); p == nil {
			return nil, ErrUnknownTask
		}
	}
	s.tellLate(p)
	s.settle(p, files)
	return s.statusOf(p)
}

// settle says of a task that was adopted too late how it ended, with the help of
// a pidfd if somebody had one.
func (s *server) settle(p *process, files []*os.File) {
	if !p.gone || p.ended() {
		return
	}
	e := lost("it ended while neither its supervisor nor its driver was there to see it")
	if p.identity.BootID != task.BootID() {
		e = lost("the host was restarted while it ran")
	} else if len(files) == 1 {
		e = s.observeExit(p.identity, int(files[0].Fd()))
	}
	s.finish(p, e)
}

// takeOver makes a process of what is on disk: one that runs, one that has
// ended, or one that is gone with nobody to tell how. It returns nil, having
// cleared up, for a task that was never really started.
func (s *server) takeOver(st *task.State) *process {
	p := newProcess(st.ID)
	close(p.begun)
	p.run = runOf(st)
	p.identity, p.group, p.oomKills = st.Identity, st.Group, st.OOMKills
	if p.exit = s.store.LoadExit(st.ID); p.exit != nil {
		close(p.done)
		close(p.output.opened)
		p.output.spec, p.closed = s.specOf(st), true // a collector may have it all the same
	}
	s.mu.Lock()
	s.processes[p.id] = p
	s.mu.Unlock()
	if p.exit != nil {
		if isChild(p.identity) { // recorded, but not reaped before the upgrade
			_, _ = unix.Wait4(p.identity.PID, nil, unix.WNOHANG, nil)
		}
		return p
	}
	if st.Identity.PID == 0 || isLauncher(st.Identity) {
		close(p.output.opened)
		s.abandon(p)
		return nil
	}
	fd, err := unix.PidfdOpen(st.Identity.PID, 0)
	if err == nil && !st.Identity.Alive() { // asked after the open: the pidfd is of this very process
		unix.Close(fd)
		err = unix.ESRCH
	}
	p.gone = err != nil
	s.resumeOutput(p, st) // also of one that is gone: its last words may still be in the pipe
	if p.gone {
		go s.drainOutput(p)
		return p
	}
	p.child = isChild(p.identity)
	if p.group.Mode == cgroup.None {
		becomeSubreaper()
	}
	p.pidfd = fd
	if err := s.loop.addProcess(p); err != nil {
		s.event(p.id, "The task can't be watched: %v", err)
	}
	return p
}

// isChild says whether a process is this one's child: one that is there, as a
// zombie perhaps.
func isChild(id task.Identity) bool {
	st, err := task.ReadStat(id.PID)
	return err == nil && st.Start == id.Start && id.BootID == task.BootID() && st.Parent == os.Getpid()
}

// isLauncher says that a process never became the task: it is the launcher of a
// supervisor that was killed meanwhile, and ends, or hangs, as that. Its exit is
// not the task's.
func isLauncher(id task.Identity) bool {
	for end := time.Now().Add(execveTime); ; time.Sleep(time.Millisecond) {
		st, err := task.ReadStat(id.PID)
		if err != nil || !id.Alive() || time.Now().After(end) {
			return false
		}
		if st.Zombie { // keeps its name, and loses its arguments
			comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", id.PID))
			return err == nil && strings.HasPrefix(string(comm), "launch:")
		}
		// until its own first execve it has the arguments of the supervisor
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id.PID))
		if len(cmdline) > 0 {
			return strings.HasPrefix(string(cmdline), argv0+"\x00")
		}
		// in the middle of an execve
	}
}

// execveTime is how long a process may have no arguments: the kernel takes
// microseconds, unless the process gets no processor meanwhile.
const execveTime = 2 * time.Second

// runs says whether a process exists and is not a zombie.
func runs(id task.Identity) bool {
	st, err := task.ReadStat(id.PID)
	return err == nil && id.Alive() && !st.Zombie
}

// processEnded is called when a pidfd says that the process is dead.
func (s *server) processEnded(p *process) {
	if p.child && p.group.Mode != cgroup.None {
		if e := peek(p.identity.PID); e != nil {
			s.finish(p, e)
			return
		}
	}
	s.conclude(p)
}

// conclude finds out how a dead process ended, where that may take a while: it is
// not our child, a debugger has it, its orphans are to be killed, or Nomad's
// logmon is to read the rest.
func (s *server) conclude(p *process) {
	var e *task.Exit
	if p.child {
		for end := time.Now().Add(100 * time.Millisecond); e == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
			e = peek(p.identity.PID)
		}
	}
	if e == nil {
		e = s.observeExit(p.identity, p.pidfd)
	}
	if p.group.Mode == cgroup.None {
		err := s.killOrphans()
		if !p.child {
			err = killMarked(p.run)
		}
		if err != nil {
			s.event(p.id, "%v", err)
		}
	}
	s.finish(p, e)
}

// finish completes what is known of an exit, once the output that was written
// before it is in the log files, records it, and tells. The process is reaped
// after the record is on disk: whoever kills this supervisor in between leaves
// the exit with the kernel.
func (s *server) finish(p *process, e *task.Exit) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	if p.task == nil {
		s.drainOutput(p)
		if kills, err := p.group.OOMKills(); err == nil && kills > p.oomKills {
			e.OOMKills = kills
			e.OOMKilled = e.Signal != 0 || e.Code != 0
		}
		if err := s.store.SaveExit(p.id, e); err != nil {
			s.event(p.id, "failed to record the exit: %v", err)
		}
	}
	s.reap(p)
	s.publish(p, e)
}

// reap lets the kernel forget a dead process.
func (s *server) reap(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.child {
		if pid, err := unix.Wait4(p.identity.PID, nil, unix.WNOHANG, nil); err == nil && pid == 0 {
			go unix.Wait4(p.identity.PID, nil, 0, nil) // when the debugger lets it go
		}
	}
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
	p.pidfd = -1
}

// killOrphans kills what ended tasks without a cgroup left behind, and returns when
// it is gone.
func (s *server) killOrphans() error { return untilNone(s.killOrphansOnce) }

// killOrphansOnce says how many there were. No launcher may be forked meanwhile: it
// would look like such a process.
func (s *server) killOrphansOnce() (int, error) {
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
