package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

// Dial connects to a TCP address as the VM sees it, such as localhost:4646.
func (v *VM) Dial(ctx context.Context, address string) (net.Conn, error) {
	stream, err := v.open(wire.Request{Dial: address})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	var d wire.Dialed
	err = wire.ReadLine(stream, &d)
	if !stop() && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil && d.Error != "" {
		err = errors.New(d.Error)
	}
	if err != nil {
		stream.Close()
		return nil, fmt.Errorf("failed to connect to %s in the VM: %w", address, err)
	}
	return stream, nil
}

// Forward makes a TCP port of the VM's loopback reachable at a free one of ours,
// and returns its address, host and port. It ends with the VM.
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
		to.Close() // yamux closes one direction: what comes is still read
	}()
	io.Copy(c, to)
	c.Close()
	<-done
}
