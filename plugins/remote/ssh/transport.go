// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// readBuffer is the size of the read buffer of each connection. Package ssh reads 4 KB at a time, which is two system
// calls for a packet.
const readBuffer = 64 << 10

// transport carries a connection.
type transport struct {
	net.Conn
	reader   *bufio.Reader
	raw      syscall.RawConn // of TCP; nil if there is a jump host
	jump     *Conn           // nil: none
	silence  time.Duration
	watchdog *time.Timer // ends the connection after the silence
}

// dialTransport connects to the server, through the jump host if there is one.
func (c Config) dialTransport(ctx context.Context) (t *transport, err error) {
	t = &transport{silence: c.silence}
	if c.Jump == nil {
		t.Conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", c.address())
		if err != nil {
			return nil, c.explainDial(err)
		}
		t.raw, err = t.Conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			return nil, c.explainDial(err)
		}
	} else {
		t.jump, err = c.Jump.dial(ctx)
		if err != nil {
			return nil, fmt.Errorf("the jump host: %w", err)
		}
		t.Conn, err = t.jump.client.DialContext(ctx, "tcp", c.address())
		if err != nil {
			_ = t.jump.Close()
			return nil, fmt.Errorf("the jump host %s failed to connect to %s, or does not allow it (AllowTcpForwarding): %w",
				c.Jump, c.address(), err)
		}
	}
	t.reader = bufio.NewReaderSize(t.Conn, readBuffer)
	return t, nil
}

// Read takes each byte for a sign of life, and acknowledges it immediately. sshd holds back the second part of an
// answer until the first is acknowledged (Nagle's algorithm, RFC 896; it sets TCP_NODELAY for terminals only), and
// Linux delays that by up to 40 ms unless TCP_QUICKACK is set after each read (tcp(7)).
func (t *transport) Read(b []byte) (int, error) {
	receives := t.reader.Buffered() == 0
	n, err := t.reader.Read(b)
	if !receives || n == 0 {
		return n, err
	}

	t.watchdog.Reset(t.silence)
	if t.raw != nil {
		_ = t.raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) // without it, slower
		})
	}
	return n, err
}

// Close closes the connection to the jump host, too: its channel alone would not close while that host is stuck.
func (t *transport) Close() error {
	t.watchdog.Stop()
	if t.jump != nil {
		return t.jump.Close()
	}
	return t.Conn.Close()
}
