// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/crypto/ssh"
)

// Conn is a connection to a host. Its methods may be called concurrently.
type Conn struct {
	config    Config
	client    *ssh.Client
	transport *transport
	ctx       context.Context // its cause is why the connection ended
	cancel    context.CancelCauseFunc
}

// dialTime is how long Dial may take.
const dialTime = 15 * time.Second

// Dial connects to the host and logs in. That takes at most 15 seconds.
func Dial(ctx context.Context, config Config) (*Conn, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return config.complete().dial(ctx)
}

func (c Config) dial(ctx context.Context) (*Conn, error) {
	check, algorithms, err := c.hostKeys()
	if err != nil {
		return nil, err
	}
	method, source, err := c.login(ctx)
	if err != nil {
		return nil, err
	}
	transport, err := c.dialTransport(ctx)
	if err != nil {
		return nil, err
	}
	conn := &Conn{config: c, transport: transport}
	conn.ctx, conn.cancel = context.WithCancelCause(context.Background())
	transport.watchdog = time.AfterFunc(c.silence, func() {
		conn.end(fmt.Errorf("the host sent nothing for %v", c.silence))
	})

	stop := context.AfterFunc(ctx, func() { transport.Close() })
	var untrusted error
	established, channels, requests, err := ssh.NewClientConn(transport, c.address(), &ssh.ClientConfig{
		User: c.User,
		Auth: []ssh.AuthMethod{method},
		HostKeyCallback: func(address string, remote net.Addr, key ssh.PublicKey) error {
			untrusted = check(address, remote, key)
			return untrusted
		},
		HostKeyAlgorithms: algorithms,
	})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		transport.Close()
		return nil, cmp.Or(untrusted, c.explainLogin(ctx, err, source))
	}
	conn.client = ssh.NewClient(established, channels, requests)
	go conn.wait()
	go conn.keepAlive()
	return conn, nil
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.ctx.Done() }

// Close ends the connection and everything that uses it.
func (c *Conn) Close() error {
	c.end(errors.New("it was closed"))
	_ = c.client.Wait() // its error was the cause, if it came first
	return nil
}

// end ends the connection. The first cause counts.
func (c *Conn) end(cause error) {
	c.cancel(cause)
	c.transport.Close()
}

// endWith ends the connection at the end of a context, until stop is called. The end of a single session would not be
// enough: the server may confirm it only when its program ends.
func (c *Conn) endWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { c.end(fmt.Errorf("a command did not end in time: %w", ctx.Err())) })
}

// wait finds the end of the connection.
func (c *Conn) wait() {
	err := c.client.Wait()
	if errors.Is(err, io.EOF) {
		err = errors.New("the host closed it")
	}
	c.end(err)
}

// keepAlive asks the host for answers. On a slow link one may come late, behind megabytes of output.
func (c *Conn) keepAlive() {
	for c.ask() == nil {
		select {
		case <-c.Done():
		case <-time.After(c.config.silence / 2):
		}
	}
}

// ask returns when the host has answered, or with an error when the connection is lost.
func (c *Conn) ask() error {
	_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
	return err
}

// lostOr returns an error that tells why the connection was lost, and the given one if the host answers. Package ssh
// reports the same errors for the end of a channel as for the end of the connection.
func (c *Conn) lostOr(err error) error {
	if c.ask() == nil {
		return err
	}
	c.transport.Close()
	<-c.Done()
	return fmt.Errorf("the connection to %s was lost: %w", c.config, context.Cause(c.ctx))
}
