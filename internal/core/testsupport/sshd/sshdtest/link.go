// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshdtest

import (
	"net"
	"sync"

	"github.com/shoenig/test/must"
)

// Link is a proxy to a server that simulates a broken network. While it is cut, it forwards nothing and closes no
// connections. Data sent during this time arrives after Restore, as with TCP retransmission.
type Link struct {
	Port int // on 127.0.0.1

	server string

	mu       sync.Mutex
	changed  *sync.Cond
	cut      bool
	budget   int // bytes to the server until the link is cut; negative: no limit
	closed   bool
	listener net.Listener
	conns    []net.Conn
}

// Link opens a link to the server until the end of the test.
func (s *Server) Link() *Link {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(s.t, err)
	l := &Link{Port: listener.Addr().(*net.TCPAddr).Port, server: s.Address(), budget: -1, listener: listener}
	l.changed = sync.NewCond(&l.mu)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { l.serve(near) })
		}
	})
	s.t.Cleanup(func() {
		l.close()
		running.Wait()
	})
	return l
}

// Cut cuts the link.
func (l *Link) Cut() { l.set(true, -1) }

// CutAfter cuts the link after it has forwarded this number of further bytes to the server.
func (l *Link) CutAfter(bytes int) { l.set(false, bytes) }

// Restore ends a cut.
func (l *Link) Restore() { l.set(false, -1) }

// WaitCut waits until the link is cut.
func (l *Link) WaitCut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.cut && !l.closed {
		l.changed.Wait()
	}
}

func (l *Link) set(cut bool, budget int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.budget = cut, budget
	l.changed.Broadcast()
}

func (l *Link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.listener.Close()
	for _, conn := range l.conns {
		conn.Close()
	}
	l.changed.Broadcast()
}

// pass waits until the link is not cut, and subtracts toServer bytes from the budget. It returns false if the link is
// closed.
func (l *Link) pass(toServer int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.cut && !l.closed {
		l.changed.Wait()
	}
	if l.budget >= 0 && toServer > 0 {
		l.budget -= toServer
		if l.budget < 0 {
			l.cut = true
			l.changed.Broadcast()
		}
	}
	return !l.closed
}

func (l *Link) serve(near net.Conn) {
	defer near.Close()
	if !l.pass(0) {
		return
	}
	far, err := net.Dial("tcp", l.server)
	if err != nil {
		return
	}
	defer far.Close()
	l.mu.Lock()
	l.conns = append(l.conns, near, far)
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.carry(near, far, false)
	}()
	l.carry(far, near, true)
	<-done
}

// carry copies until either end is closed, and then closes both.
func (l *Link) carry(to, from net.Conn, toServer bool) {
	defer to.Close()
	defer from.Close()
	for buffer := make([]byte, 32<<10); ; {
		n, err := from.Read(buffer)
		count := 0
		if toServer {
			count = n
		}
		if !l.pass(count) || err != nil {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
