// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"fmt"
	"io"
	"net"
)

// Dial connects to a TCP address as the VM sees it, such as localhost:4646.
func (v *VM) Dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := v.client.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("failed to connect to %s in the VM: %w", address, err)
	}
	return c, nil
}

// Forward forwards a free loopback port of this machine to a TCP port of the VM's loopback, and returns its address,
// host and port. It ends with the VM.
func (v *VM) Forward(port int) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("failed to listen: %w", err)
	}
	context.AfterFunc(v.ctx, func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go v.pipe(c, port)
		}
	}()
	return l.Addr().String(), nil
}

// pipe connects a client with the VM's port until both directions have ended.
func (v *VM) pipe(c net.Conn, port int) {
	defer c.Close()
	to, err := v.Dial(v.ctx, fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return // the client sees a connection that is closed
	}
	defer to.Close()
	stop := context.AfterFunc(v.ctx, func() { c.Close(); to.Close() })
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(to, c)
		to.(interface{ CloseWrite() error }).CloseWrite()
	}()
	io.Copy(c, to)
	c.Close()
	<-done
}
