// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// Client is a connection to a host. Its methods may be called concurrently. They connect if there is no connection.
type Client struct {
	config   Config
	jump     *Client // nil: none
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup
	commands chan struct{} // holds a value for each command that runs

	mu       sync.Mutex
	client   *ssh.Client // nil: not connected
	attempt  *attempt    // nil: none under way
	failures int         // without a success in between
	last     error       // of the last attempt
	next     time.Time   // not before then
}

// attempt is an attempt to connect, which all callers that need a connection share.
type attempt struct {
	done   chan struct{} // closed at the end
	client *ssh.Client
	err    error
}

// The times between attempts. A host that refuses the user is asked seldom, lest it ban this machine.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 15 * time.Second
	refusedPause = 30 * time.Second
	shortLife    = 5 * time.Second // a connection that ends sooner counts as a failure
)

// maxCommands is how many run at a time. Servers allow 10 sessions a connection (MaxSessions).
const maxCommands = 6

// New returns a client that is not connected.
func New(c Config) (*Client, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	h := &Client{config: c, commands: make(chan struct{}, maxCommands)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	if c.Jump != nil {
		if h.jump, err = New(*c.Jump); err != nil {
			return nil, fmt.Errorf("jump: %w", err)
		}
	}
	return h, nil
}

// String is for a person.
func (c *Client) String() string { return c.config.User + "@" + c.config.hostPort() }

// Close ends the connection, and all that uses it.
func (c *Client) Close() error {
	c.cancel()
	c.mu.Lock()
	if c.client != nil {
		c.client.Close()
	}
	c.mu.Unlock()
	if c.jump != nil {
		_ = c.jump.Close()
	}
	c.running.Wait()
	return nil
}

func (c *Client) connect(ctx context.Context) (*ssh.Client, error) {
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		return nil, errors.New("the connection was closed")
	}
	if c.client != nil {
		defer c.mu.Unlock()
		return c.client, nil
	}
	a := c.attempt
	if a == nil {
		if pause := time.Until(c.next); pause > 0 {
			defer c.mu.Unlock()
			return nil, fmt.Errorf("%w (the next attempt is in %v)", c.last, pause.Round(time.Millisecond))
		}
		a = &attempt{done: make(chan struct{})}
		c.attempt = a
		c.running.Go(func() { c.try(a) })
	}
	c.mu.Unlock()
	select {
	case <-a.done:
		return a.client, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("there is no connection to %s yet: %w", c, ctx.Err())
	}
}

// try makes an attempt.
func (c *Client) try(a *attempt) {
	defer close(a.done)
	var heard *bufferedConn
	a.client, heard, a.err = c.dial()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempt = nil
	if a.err != nil {
		c.failed(a.err)
		return
	}
	if c.ctx.Err() != nil { // Close did not see it
		a.client.Close()
	}
	c.client = a.client
	c.running.Go(func() { c.watch(a.client, heard) })
}

// failed puts the next attempt off. The caller holds the lock.
func (c *Client) failed(err error) {
	pause := min(firstPause<<min(c.failures, 10), longestPause)
	if errors.Is(err, ErrHostKey) || errors.Is(err, ErrRefused) {
		pause = refusedPause
	}
	c.failures++
	c.last, c.next = err, time.Now().Add(pause/2+rand.N(pause/2))
}

// ask returns when the host has answered, whatever that says, or with an error when the connection is lost.
func ask(client *ssh.Client) error {
	_, _, err := client.SendRequest("keepalive@openssh.com", true, nil)
	return err
}

// watch returns when the connection has ended. It ends one on which nothing is read any more, though it asks.
func (c *Client) watch(client *ssh.Client, heard *bufferedConn) {
	begun := time.Now()
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = client.Wait()
	}()
	ticker := time.NewTicker(c.config.Silence / 3)
	defer ticker.Stop()
	asked := make(chan struct{}, 1) // holds a value while a question is under way
	for alive := true; alive; {
		select {
		case <-ended:
			alive = false
		case <-ticker.C:
			select {
			case asked <- struct{}{}:
				go func() { // ends with the connection
					_ = ask(client)
					<-asked
				}()
			default: // the answer of a slow link comes behind other data, each byte of which is a sign of life
				if heard.silence() > c.config.Silence {
					client.Close()
				}
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client = nil
	c.failures, c.next = 0, time.Time{}
	if time.Since(begun) < shortLife {
		c.failed(fmt.Errorf("%s ended the connection: %w", c, err))
	}
}

// dial connects and logs in.
func (c *Client) dial() (*ssh.Client, *bufferedConn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.config.Timeout)
	defer cancel()
	keys, err := c.config.hostKeys()
	if err != nil {
		return nil, nil, err
	}
	proof, err := c.config.proof(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer proof.release()
	conn, err := c.dialServer(ctx)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	// the library reads 4 KB at a time: two system calls for a packet
	buffered := &bufferedConn{Conn: conn, r: bufio.NewReaderSize(conn, readBuffer), begun: time.Now()}
	established, channels, requests, err := ssh.NewClientConn(buffered, c.config.hostPort(), &ssh.ClientConfig{
		User:              c.config.User,
		Auth:              []ssh.AuthMethod{proof.method},
		HostKeyCallback:   keys.check,
		HostKeyAlgorithms: keys.algorithms,
		BannerCallback:    func(string) error { return nil },
	})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, nil, c.explain(ctx, err, keys, proof)
	}
	return ssh.NewClient(established, channels, requests), buffered, nil
}

// readBuffer is the size of the read buffer, of which each host has one.
const readBuffer = 64 << 10

// bufferedConn notes when something was read, too.
type bufferedConn struct {
	net.Conn
	r     *bufio.Reader
	begun time.Time
	last  atomic.Int64 // nanoseconds after begun
}

func (c *bufferedConn) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if n > 0 {
		c.last.Store(int64(time.Since(c.begun)))
	}
	return n, err
}

// silence is how long nothing was read.
func (c *bufferedConn) silence() time.Duration {
	return time.Since(c.begun) - time.Duration(c.last.Load())
}

// promptConn acknowledges what it reads at once. sshd holds back the second part of an answer until the first is
// acknowledged (Nagle's algorithm, RFC 896; it sets TCP_NODELAY for terminals alone), and Linux waits up to 40 ms with
// that (tcp(7), TCP_QUICKACK, which has to be set again and again).
func promptConn(conn *net.TCPConn) (net.Conn, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &prompt{conn, raw}, nil
}

type prompt struct {
	*net.TCPConn
	raw syscall.RawConn
}

func (p *prompt) Read(b []byte) (int, error) {
	n, err := p.TCPConn.Read(b)
	_ = p.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) // without it, slower
	})
	return n, err
}

// dialServer connects to the server, by the host on the way if there is one.
func (c *Client) dialServer(ctx context.Context) (net.Conn, error) {
	if c.jump == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.config.hostPort())
		if err != nil {
			return nil, c.explainDial(err)
		}
		return promptConn(conn.(*net.TCPConn))
	}
	conn, err := c.jump.Dial(ctx, "tcp", c.config.hostPort())
	if err != nil {
		return nil, fmt.Errorf("the jump host: %w", err)
	}
	return conn, nil
}
