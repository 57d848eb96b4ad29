// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bufio"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// readBuffer is the size of the read buffer of each connection. Package ssh reads 4 KB at a time, which is two system
// calls for a packet.
const readBuffer = 64 << 10

// bufferedConn records when a byte was last read.
type bufferedConn struct {
	net.Conn
	reader *bufio.Reader
	begun  time.Time
	last   atomic.Int64 // nanoseconds after begun
}

func newBufferedConn(conn net.Conn) *bufferedConn {
	return &bufferedConn{Conn: conn, reader: bufio.NewReaderSize(conn, readBuffer), begun: time.Now()}
}

func (c *bufferedConn) Read(b []byte) (int, error) {
	n, err := c.reader.Read(b)
	if n > 0 {
		c.last.Store(int64(time.Since(c.begun)))
	}
	return n, err
}

// silence is the time since a byte was last read.
func (c *bufferedConn) silence() time.Duration {
	return time.Since(c.begun) - time.Duration(c.last.Load())
}

// promptConn acknowledges immediately what it reads. sshd holds back the second part of an answer until the first is
// acknowledged (Nagle's algorithm, RFC 896; it sets TCP_NODELAY for terminals only), and Linux delays that by up to
// 40 ms unless TCP_QUICKACK is set after each read (tcp(7)).
type promptConn struct {
	*net.TCPConn
	raw syscall.RawConn
}

func newPromptConn(conn *net.TCPConn) (net.Conn, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &promptConn{conn, raw}, nil
}

func (p *promptConn) Read(b []byte) (int, error) {
	n, err := p.TCPConn.Read(b)
	_ = p.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) // without it, slower
	})
	return n, err
}
