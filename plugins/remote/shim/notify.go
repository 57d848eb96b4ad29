// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// notifier tells of changes in directories (inotify(7)). What waits for one looks from time to
// time, too: a host may have no instance left, and old kernels do not tell of splice(2).
type notifier struct {
	file *os.File // nil: nothing is told

	mu      sync.Mutex
	waiters map[int]map[chan struct{}]bool // by watch
}

func newNotifier() *notifier {
	n := &notifier{waiters: map[int]map[chan struct{}]bool{}}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err == nil {
		n.file = os.NewFile(uintptr(fd), "inotify")
		go n.read()
	}
	return n
}

func (n *notifier) close() {
	if n.file != nil {
		n.file.Close()
	}
}

const changes = unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF |
	unix.IN_ONLYDIR

// watch returns a channel that has a value after a change in the directory, and a function that
// ends this.
func (n *notifier) watch(dir string) (changed <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file == nil {
		return c, func() {}
	}
	wd := -1
	if raw, err := n.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), dir, changes) })
		if err != nil {
			return c, func() {}
		}
	}
	if n.waiters[wd] == nil {
		n.waiters[wd] = map[chan struct{}]bool{}
	}
	n.waiters[wd][c] = true
	return c, func() { n.unwatch(wd, c) }
}

func (n *notifier) unwatch(wd int, c chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.waiters[wd], c)
	if len(n.waiters[wd]) > 0 {
		return
	}
	delete(n.waiters, wd)
	if raw, err := n.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
	}
}

// read ends with the file.
func (n *notifier) read() {
	buf := make([]byte, 64<<10)
	for {
		size, err := n.file.Read(buf)
		if err != nil {
			return
		}
		n.mu.Lock()
		for b := buf[:size]; len(b) >= unix.SizeofInotifyEvent; {
			wd := int(int32(binary.NativeEndian.Uint32(b)))
			name := int(binary.NativeEndian.Uint32(b[12:]))
			b = b[min(len(b), unix.SizeofInotifyEvent+name):]
			for c := range n.waiters[wd] {
				select {
				case c <- struct{}{}:
				default:
				}
			}
		}
		n.mu.Unlock()
	}
}
