package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// streamNames are a task's streams: the names of its FIFOs, and of its log files.
var streamNames = [2]string{"stdout", "stderr"}

// stream is one output stream of a task that this supervisor collects.
type stream struct {
	p *process

	mu   sync.Mutex   // the event loop pumps, and the end of a task drains
	logs *logs.Stream // nil when closed
}

// drainTime bounds how long the end of a task waits for its last output to be
// taken: by a full disk, or by a logmon that is gone.
const drainTime = 2 * time.Second

// openOutput makes a new task's standard streams. The caller closes the files,
// which are the task's ends, when the task has them.
func (s *server) openOutput(p *process, st *task.State) (stdio [3]*os.File, err error) {
	uid, gid := -1, -1
	if u := st.Command.User; u != nil && os.Geteuid() == 0 {
		uid, gid = int(u.UID), int(u.GID)
	}
	for i, name := range streamNames {
		switch st.Output.Collector {
		case task.CollectorDriver:
			path := s.store.FIFO(st.ID, name)
			if err = logs.MakeFIFO(path, uid, gid); err != nil {
				return stdio, err
			}
			if err = s.openStream(p, name); err != nil {
				return stdio, err
			}
			stdio[i+1], err = logs.OpenTaskEnd(path)
		case task.CollectorNomad:
			path := []string{st.Output.Stdout, st.Output.Stderr}[i]
			if stdio[i+1], err = logs.OpenNomadFIFO(path, uid, gid); err == nil {
				err = p.hold(path, uid, gid)
			}
		default:
			// /dev/null is what a nil file becomes
		}
		if err != nil {
			return stdio, err
		}
	}
	return stdio, nil
}

// hold keeps a FIFO of Nomad's logmon open for as long as the task lives, so that
// its output waits there while no logmon does.
func (p *process) hold(path string, uid, gid int) error {
	f, err := logs.OpenNomadFIFO(path, uid, gid)
	if err == nil {
		p.held = append(p.held, f)
	}
	return err
}

// openStream opens the supervisor's end of a FIFO, and the log file.
func (s *server) openStream(p *process, name string) error {
	fd, err := logs.OpenReadEnd(s.store.FIFO(p.id, name))
	if errors.Is(err, fs.ErrNotExist) {
		fd, err = p.readEndOfTask(name, err)
	}
	if err != nil {
		return err
	}
	l, err := logs.Open(fd, logs.Config{
		AllocDir: p.output.AllocDir, Name: p.output.Task + "." + name,
		MaxFiles: p.output.MaxFiles, MaxFileSize: p.output.MaxFileSize,
	})
	if l != nil {
		p.streams = append(p.streams, &stream{p: p, logs: l})
	}
	return err
}

// readEndOfTask finds a FIFO whose name is gone, because somebody removed the
// state directory, at the task that still writes to it. notFound is returned where
// the task has put something else in its place.
func (p *process) readEndOfTask(name string, notFound error) (int, error) {
	path := fmt.Sprintf("/proc/%d/fd/%d", p.identity.PID, 1+slices.Index(streamNames[:], name))
	var st unix.Stat_t
	if !p.identity.Alive() || unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO || st.Nlink != 0 {
		return -1, notFound
	}
	return logs.OpenReadEnd(path)
}

// reopenOutput opens what a supervisor before this one had open. Errors are the
// stream's to deal with: a task that runs is not ended for them.
func (s *server) reopenOutput(p *process, out task.Output, u *task.User) {
	uid, gid := -1, -1
	if u != nil && os.Geteuid() == 0 {
		uid, gid = int(u.UID), int(u.GID)
	}
	for i, name := range streamNames {
		var err error
		switch out.Collector {
		case task.CollectorDriver:
			err = s.openStream(p, name)
		case task.CollectorNomad:
			err = p.hold([]string{out.Stdout, out.Stderr}[i], uid, gid)
		}
		if err != nil {
			s.event(p.id, "Output: %v", err)
		}
	}
}

// pump moves a stream's output and arranges when the loop looks at it again.
func (l *loop) pump(str *stream) {
	str.mu.Lock()
	defer str.mu.Unlock()
	if str.logs == nil {
		return
	}
	r := str.logs.Pump(time.Now())
	l.server.tell(str.p, r.Events)
	switch r.Next {
	case logs.Wait:
		l.arm(str.logs.FD())
	case logs.Later:
		l.rest(str, r.At)
	case logs.Ended:
		// nobody can write to it any more; it is closed with the task
	}
}

// drainStreams moves all output that is there, once a task has ended: whoever is
// told of the exit finds the last line in the file.
func (s *server) drainStreams(p *process) {
	for _, str := range p.streams {
		str.mu.Lock()
		if str.logs != nil {
			r := str.logs.Drain(time.Now())
			s.tell(p, r.Events)
		}
		str.mu.Unlock()
	}
	for _, f := range p.held { // logmon reads to the end when all writers are gone
		for end := time.Now().Add(drainTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if n, err := logs.Queued(int(f.Fd())); err != nil || n == 0 {
				break
			}
		}
	}
}

// closeStreams ends the collection of a task's output.
func (s *server) closeStreams(p *process) {
	for _, str := range p.streams {
		str.mu.Lock()
		if str.logs != nil {
			for end := time.Now().Add(drainTime); ; time.Sleep(50 * time.Millisecond) {
				r := str.logs.Drain(time.Now())
				s.tell(p, r.Events)
				if r.Next == logs.Ended || time.Now().After(end) {
					break
				}
			}
			s.loop.remove(str.logs.FD())
			s.tell(p, str.logs.Close())
			str.logs = nil
		}
		str.mu.Unlock()
	}
	closeAll(p.held)
	p.held = nil
}

func (s *server) tell(p *process, events []string) {
	for _, e := range events {
		s.event(p.id, "Output: %s", e)
	}
}
