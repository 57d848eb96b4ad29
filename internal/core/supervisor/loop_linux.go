// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// loop watches every process with epoll(7). It needs one descriptor per process, the pidfd, and accesses no file.
type loop struct {
	server *server
	ep     int

	mu      sync.Mutex
	watched map[int32]*process // by pidfd
}

func newLoop(s *server) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return &loop{server: s, ep: ep, watched: map[int32]*process{}}, err
}

// addProcess watches a process until its end. If the kernel refuses another epoll entry (ENOMEM, or ENOSPC because of
// fs.epoll.max_user_watches), a goroutine checks every watchTime whether the process has ended.
func (l *loop) addProcess(p *process) {
	fd := p.pidfd
	l.mu.Lock()
	l.watched[int32(fd)] = p
	l.mu.Unlock()
	if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, event(fd)); err == nil {
		return
	}
	l.remove(fd)
	go func() {
		for !task.Dead(fd, 0) {
			time.Sleep(watchTime)
		}
		l.server.processEnded(p)
	}()
}

const watchTime = 100 * time.Millisecond

func event(fd int) *unix.EpollEvent {
	return &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)}
}

// remove ends the watch of a pidfd. It must be called before the pidfd is closed.
func (l *loop) remove(fd int) {
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.watched, int32(fd))
}

func (l *loop) run() {
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(l.ep, events, -1)
		if err != nil && err != unix.EINTR {
			panic("epoll_wait: " + err.Error()) // only a programming error can be the cause
		}
		for _, ev := range events[:max(n, 0)] {
			fd := int(ev.Fd)
			l.mu.Lock()
			p := l.watched[ev.Fd]
			l.mu.Unlock()
			switch {
			case p == nil:
			case !task.Dead(fd, 0): // the event may be for an earlier process with this descriptor number
				_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_MOD, fd, event(fd))
			default:
				l.remove(fd)
				go l.server.processEnded(p)
			}
		}
	}
}
