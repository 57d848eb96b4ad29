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
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Conn is a connection to a host. Its methods may be called concurrently.
type Conn struct {
	config Config
	client *ssh.Client
	read   *bufferedConn
	jump   *Conn // nil: none
	done   chan struct{}

	mu    sync.Mutex
	cause error // of the end; nil until then
}

// Dial connects to the host and logs in. That takes at most 15 seconds.
func Dial(ctx context.Context, config Config) (*Conn, error) {
	config = config.complete()
	if err := config.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, config.timeout)
	defer cancel()
	return config.dial(ctx)
}

func (c Config) dial(ctx context.Context) (*Conn, error) {
	keys, err := c.hostKeys()
	if err != nil {
		return nil, err
	}
	login, err := c.login(ctx)
	if err != nil {
		return nil, err
	}
	defer login.release()
	conn := &Conn{config: c, done: make(chan struct{})}
	transport, err := conn.dialServer(ctx)
	if err != nil {
		return nil, err
	}

	conn.read = newBufferedConn(transport)
	stop := context.AfterFunc(ctx, func() { transport.Close() })
	var untrusted error
	established, channels, requests, err := ssh.NewClientConn(conn.read, c.address(), &ssh.ClientConfig{
		User: c.User,
		Auth: []ssh.AuthMethod{login.method},
		HostKeyCallback: func(address string, remote net.Addr, key ssh.PublicKey) error {
			untrusted = keys.check(address, remote, key)
			return untrusted
		},
		HostKeyAlgorithms: keys.algorithms,
	})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		transport.Close()
		if conn.jump != nil {
			_ = conn.jump.Close()
		}
		return nil, cmp.Or(untrusted, c.explainLogin(ctx, err, keys, login))
	}
	conn.client = ssh.NewClient(established, channels, requests)
	go conn.wait()
	go conn.keepAlive()
	return conn, nil
}

// dialServer connects to the server, through the jump host if there is one.
func (c *Conn) dialServer(ctx context.Context) (net.Conn, error) {
	config := c.config
	if config.Jump == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", config.address())
		if err != nil {
			return nil, config.explainDial(err)
		}
		return newPromptConn(conn.(*net.TCPConn))
	}

	jump, err := config.Jump.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("the jump host: %w", err)
	}
	conn, err := jump.client.DialContext(ctx, "tcp", config.address())
	if err != nil {
		_ = jump.Close()
		return nil, config.explainForward(ctx, err)
	}
	c.jump = jump
	return conn, nil
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection and everything that uses it.
func (c *Conn) Close() error {
	c.end(errors.New("it was closed"))
	<-c.done
	return nil
}

// end ends the connection. The first cause counts.
func (c *Conn) end(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	if c.jump != nil {
		c.jump.end(cause) // first: a channel of a connection that is stuck does not close
	}
	c.client.Close()
}

// wait closes done when the connection has ended.
func (c *Conn) wait() {
	err := c.client.Wait()
	if errors.Is(err, io.EOF) {
		err = errors.New("the host closed it")
	}
	c.end(err)
	if c.jump != nil {
		<-c.jump.done
	}
	close(c.done)
}

// keepAlive asks the host for an answer, and ends the connection if nothing arrives. Each byte is a sign of life: on a
// slow link the answer may come behind megabytes of output.
func (c *Conn) keepAlive() {
	pending := make(chan struct{}, 1) // holds a value during a request
	for wait := c.config.interval; ; wait = min(c.config.interval, c.config.silence-c.read.silence()) {
		select {
		case <-c.done:
			return
		case <-time.After(wait):
		}
		if c.read.silence() >= c.config.silence {
			c.end(fmt.Errorf("the host sent nothing for %v", c.config.silence))
			return
		}
		select {
		case pending <- struct{}{}:
			go func() { // ends with the connection
				_ = c.ask()
				<-pending
			}()
		default:
		}
	}
}

// ask returns when the host has answered, or with an error when the connection is lost.
func (c *Conn) ask() error {
	_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
	return err
}

// lost returns an error if the connection is lost, and nil if the host answers. Package ssh reports the same errors for
// the end of a channel as for the end of the connection.
func (c *Conn) lost() error {
	if c.ask() == nil {
		return nil
	}
	c.client.Close()
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("the connection to %s was lost: %w", c.config, c.cause)
}
