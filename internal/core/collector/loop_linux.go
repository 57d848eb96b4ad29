// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package collector

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/logs"
)

// loop watches the output of all tasks with a single epoll(7) instance. Each task uses only a few descriptors.
//
// Streams are registered with EPOLLONESHOT, so the loop decides after each event when to watch the stream again. This
// batches small writes, and prevents a busy loop while a disk is full.
//
// One goroutine, the runner, runs the loop and moves the bytes. If a file system blocks it for longer than stallTime, a
// new runner takes over, and the old one exits when the file system responds. Until then, each stream of that file
// system is served by its own goroutine.
type loop struct {
	ep    int
	watch *time.Timer // calls takeOver when the runner is blocked

	mu      sync.Mutex
	watched map[int32]*stream // by descriptor of the FIFO
	resting map[*stream]time.Time
	queue   []*stream
	runner  int            // number of the current runner
	busy    *stream        // the stream that the runner works on
	stalled map[uint64]int // number of blocked runners by device
}

const (
	// stallTime is the time after which a runner counts as blocked. Moving the content of a full pipe takes longer only on
	// an overloaded machine.
	stallTime = 50 * time.Millisecond

	// hangTime is the time after which the user of the task gets an event about blocked output.
	hangTime = 2 * time.Second
)

func newLoop() (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	l := &loop{ep: ep, watched: map[int32]*stream{}, resting: map[*stream]time.Time{},
		stalled: map[uint64]int{}}
	l.watch = time.AfterFunc(time.Hour, l.takeOver)
	l.watch.Stop()
	return l, err
}

// add begins to watch a stream's FIFO.
func (l *loop) add(str *stream) error {
	fd := str.logs.FD()
	l.mu.Lock()
	l.watched[int32(fd)] = str
	l.mu.Unlock()
	return unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, event(fd))
}

func event(fd int) *unix.EpollEvent {
	return &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)}
}

// arm makes epoll report the FIFO's next event.
func (l *loop) arm(fd int) {
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_MOD, fd, event(fd))
}

// rest postpones the next pump of a stream until the given time.
func (l *loop) rest(str *stream, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy == str {
		l.resting[str] = until
		return
	}
	// The runner may be in epoll_wait without a timeout. The FIFO still contains bytes, so arming it wakes the runner.
	time.AfterFunc(time.Until(until), func() { str.locked(func() { l.arm(str.logs.FD()) }) })
}

// remove ends the watch of a stream. Call it before closing the FIFO.
func (l *loop) remove(str *stream) {
	fd := str.logs.FD()
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.resting, str)
	delete(l.watched, int32(fd))
}

// run moves output as the runner with the given number, until another runner has taken over.
func (l *loop) run(runner int) {
	events := make([]unix.EpollEvent, 128)
	for {
		str, mine := l.next(runner)
		switch {
		case !mine:
			return
		case str == nil:
			l.await(events)
		default:
			str.locked(func() { l.pump(str) })
		}
	}
}

// next returns the next stream to pump, or nil if none is due. It returns false if another runner has taken over.
func (l *loop) next(runner int) (*stream, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runner != runner {
		return nil, false // leave the timer alone: the new runner uses it
	}
	l.watch.Stop()
	l.busy = nil
	for len(l.queue) > 0 {
		str := l.queue[0]
		l.queue = l.queue[1:]
		if l.stalled[str.device] > 0 {
			go str.locked(func() { str.mayHang(func() { l.pump(str) }) })
			continue
		}
		l.busy = str
		l.watch.Reset(stallTime)
		return str, true
	}
	l.queue = nil
	return nil, true
}

// await waits for events and fills the queue.
func (l *loop) await(events []unix.EpollEvent) {
	n, err := unix.EpollWait(l.ep, events, l.timeout())
	if err != nil && err != unix.EINTR {
		panic("epoll_wait: " + err.Error()) // only a programming error can be the cause
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ev := range events[:max(n, 0)] {
		if str := l.watched[ev.Fd]; str != nil {
			l.queue = append(l.queue, str)
		}
	}
	for str, at := range l.resting {
		if !at.After(now) {
			l.queue = append(l.queue, str)
			delete(l.resting, str)
		}
	}
}

// takeOver replaces a blocked runner with a new one.
func (l *loop) takeOver() {
	l.mu.Lock()
	defer l.mu.Unlock()
	str := l.busy
	if str == nil {
		return
	}
	l.busy = nil
	l.runner++
	go l.run(l.runner)
	device := str.device
	l.stalled[device]++
	go str.mayHang(func() {
		str.mu.Lock() // waits for the blocked runner
		defer str.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.stalled[device]--; l.stalled[device] == 0 {
			delete(l.stalled, device)
		}
	})
}

// timeout returns the timeout for epoll_wait in ms: the time until the first resting stream is due, or -1 if no stream
// is resting.
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

// pump moves a stream's output and schedules the next call. The caller holds the stream's lock.
func (l *loop) pump(str *stream) {
	r := str.logs.Pump(time.Now())
	str.output.events(r.Events...)
	switch r.Next {
	case logs.Wait:
		l.arm(str.logs.FD())
	case logs.Later:
		l.rest(str, r.At)
	case logs.Ended:
		str.ended = true // no writer is left, but the stream stays open until the task is closed
	}
}
