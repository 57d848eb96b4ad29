package supervisor

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// loop is the one epoll(7) loop that watches every process and every task's
// output. A task costs it a few descriptors and nothing else.
//
// Output streams are registered with EPOLLONESHOT: after each event the loop
// decides when it wants to hear of the stream again, which lets little writes
// gather and a full disk rest without spinning.
type loop struct {
	server *server
	ep     int

	mu      sync.Mutex
	watched map[int32]any // *process by its pidfd, *stream by its FIFO
	resting map[*stream]time.Time
}

func newLoop(s *server) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return &loop{server: s, ep: ep, watched: map[int32]any{}, resting: map[*stream]time.Time{}}, err
}

func (l *loop) addProcess(p *process) error { return l.add(p.pidfd, p, unix.EPOLLIN|unix.EPOLLONESHOT) }

func (l *loop) addStream(str *stream) error {
	return l.add(str.logs.FD(), str, unix.EPOLLIN|unix.EPOLLONESHOT)
}

func (l *loop) add(fd int, what any, events uint32) error {
	l.mu.Lock()
	l.watched[int32(fd)] = what
	l.mu.Unlock()
	return unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// arm lets the loop hear of a descriptor once more.
func (l *loop) arm(fd int) {
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)})
}

// rest makes the loop look at a stream at a time, and not before. Only the loop
// itself may call it.
func (l *loop) rest(str *stream, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resting[str] = until
}

// remove must be called before the descriptor is closed.
func (l *loop) remove(fd int) {
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	if str, ok := l.watched[int32(fd)].(*stream); ok {
		delete(l.resting, str)
	}
	delete(l.watched, int32(fd))
}

func (l *loop) run() {
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(l.ep, events, l.timeout())
		if err != nil && err != unix.EINTR {
			panic("epoll_wait: " + err.Error()) // only a programming error can be the cause
		}
		for _, ev := range events[:max(n, 0)] {
			l.mu.Lock()
			what := l.watched[ev.Fd]
			l.mu.Unlock()
			switch w := what.(type) {
			case *process:
				// the event may be an earlier owner's of this descriptor number
				if !dead(int(ev.Fd)) {
					l.arm(int(ev.Fd))
					continue
				}
				l.remove(int(ev.Fd))
				l.server.processEnded(w)
			case *stream:
				l.pump(w)
			}
		}
		for _, str := range l.rested() {
			l.pump(str)
		}
	}
}

// timeout is how long epoll_wait may block, in ms: until the first resting stream
// is due, for ever without one.
func (l *loop) timeout() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.resting) == 0 {
		return -1
	}
	first := time.Hour
	for _, due := range l.resting {
		first = min(first, time.Until(due))
	}
	return int(max(0, first+time.Millisecond-1) / time.Millisecond)
}

func (l *loop) rested() []*stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due []*stream
	now := time.Now()
	for str, at := range l.resting {
		if !at.After(now) {
			due = append(due, str)
			delete(l.resting, str)
		}
	}
	return due
}
