// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Dial connects to an address as the host sees it: "tcp", or "unix" with the path of a socket. Where the connection to
// the host is lost, Read returns io.ErrUnexpectedEOF.
func (c *Client) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	client, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := client.DialContext(ctx, network, address)
	if err == nil {
		return &forwarded{conn.(duplex), client}, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s on %s does not answer: %w", address, c.config.Host, ctx.Err())
	}
	option := "AllowTcpForwarding"
	if network == "unix" {
		option = "AllowStreamLocalForwarding"
	}
	return nil, c.explainChannel(err, address, option)
}

// duplex is what package ssh returns for both networks.
type duplex interface {
	net.Conn
	CloseWrite() error
}

// forwarded tells a connection that was lost from one that its other end has closed: package ssh has io.EOF for both.
type forwarded struct {
	duplex
	client *ssh.Client
}

func (f *forwarded) Read(b []byte) (int, error) {
	n, err := f.duplex.Read(b)
	if errors.Is(err, io.EOF) {
		if lost := ask(f.client); lost != nil {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// Start starts a program on the host and returns a connection to its standard input and output. What the user's shell
// writes before the program is part of it. At the end of the output, Read has the end of the program's standard error
// in words, as an error that wraps io.EOF. Close ends the input; a program that goes on then is not stopped.
func (c *Client) Start(ctx context.Context, program string, args ...string) (net.Conn, error) {
	session, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	s := &conn{session: session}
	session.Stderr = &s.stderr
	s.WriteCloser, err = session.StdinPipe()
	if err == nil {
		s.Reader, err = session.StdoutPipe()
	}
	if err == nil {
		err = bounded(ctx, func() error { return session.Start(command(append([]string{program}, args...))) }, session)
	}
	if err != nil {
		session.Close()
		return nil, fmt.Errorf("%s did not start %s: %w", c, program, err)
	}
	return s, nil
}

// bounded returns when f does, or when the context ends. In the second case it closes what f waits for, and does not
// wait for f: the server may confirm the close only when the program ends.
func bounded(ctx context.Context, f func() error, closer io.Closer) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		closer.Close()
		return ctx.Err()
	}
}

// conn is a session's standard input and output.
type conn struct {
	io.Reader
	io.WriteCloser
	session *ssh.Session
	stderr  tail
	once    sync.Once
	end     error
}

var _ net.Conn = (*conn)(nil)

func (s *conn) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if errors.Is(err, io.EOF) && n == 0 {
		s.once.Do(s.wait)
		return 0, s.end
	}
	return n, err
}

// endTime is how long conn waits for the status of a program that has closed its output.
const endTime = 2 * time.Second

// wait finds out what Read returns at the end.
func (s *conn) wait() {
	s.end = io.EOF
	exit := make(chan error, 1)
	go func() { exit <- s.session.Wait() }() // ends with the program, or with the connection
	select {
	case err := <-exit:
		if err != nil {
			s.end = fmt.Errorf("%w: %w", explainExit(err, &s.stderr), io.EOF)
		}
	case <-time.After(endTime):
	}
}

// Close closes the session, which ends the input, too. It does not close the input first: a channel of package ssh
// allows no CloseWrite while another goroutine is in Write.
func (s *conn) Close() error {
	if err := s.session.Close(); !errors.Is(err, io.EOF) { // it was closed
		return err
	}
	return nil
}

func (s *conn) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "ssh", Net: "unix"} }
func (s *conn) RemoteAddr() net.Addr             { return s.LocalAddr() }
func (s *conn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (s *conn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (s *conn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// oneLine makes one line of a script, which printf(1) reverses: csh allows no other between apostrophes.
var oneLine = strings.NewReplacer(`\`, `\\`, "\n", `\n`)

// MaxOutput is how much output of a Run is returned, in bytes. More is an error.
const MaxOutput = 1 << 20

// maxNoise is how much a shell may write before a command.
const maxNoise = 256 << 10

// ExitError is the end of a command that failed.
type ExitError struct {
	Status int    // -1: it was killed, or its end was not told
	Reason string // in words, with the end of its standard error
}

func (e *ExitError) Error() string { return e.Reason }

// Run runs a script of sh(1) with arguments, and returns its standard output, without what the user's shell writes
// before it. The script need not read all of the input, which may be read for a moment after Run has returned. A
// script that fails is an ExitError.
func (c *Client) Run(ctx context.Context, input io.Reader, script string, args ...string) ([]byte, error) {
	select {
	case c.commands <- struct{}{}:
		defer func() { <-c.commands }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	session, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	mark := "outrider-" + rand.Text()
	stdout := limited{end: session}
	var stderr tail
	session.Stdout, session.Stderr = &stdout, &stderr
	if input != nil {
		stdin, err := session.StdinPipe() // unlike Stdin, it does not count when the script ends without reading all
		if err != nil {
			return nil, err
		}
		go func() {
			defer stdin.Close()
			_, _ = io.Copy(stdin, input) // ends with the session
		}()
	}
	run := "echo " + mark + `; eval "shift; $(printf %b "$1")"`
	words := append([]string{"/bin/sh", "-c", run, "sh", oneLine.Replace(script)}, args...)
	err = bounded(ctx, func() error { return session.Run(command(words)) }, session)
	if err != nil && errors.Is(err, ctx.Err()) {
		return nil, fmt.Errorf("the command on %s did not end in time: %w", c.config.Host, ctx.Err())
	}
	noise, output, found := bytes.Cut(stdout.buffer.Bytes(), []byte(mark+"\n"))
	switch {
	case stdout.over || len(output) > MaxOutput:
		return nil, fmt.Errorf("the command on %s wrote more than %d bytes", c.config.Host, MaxOutput)
	case !found && err != nil && !isExit(err):
		return nil, fmt.Errorf("the connection to %s was lost: %w", c, err)
	case !found:
		return nil, fmt.Errorf("%s can't run commands: its login shell or a forced command wrote %q (%w)", c,
			lastOf(append(noise, stderr.String()...)), cmp.Or(err, errors.New("exit status 0")))
	case err != nil:
		return output, explainExit(err, &stderr)
	}
	return output, nil
}

func isExit(err error) bool {
	var exit *ssh.ExitError
	return errors.As(err, &exit)
}

func explainExit(err error, stderr *tail) error {
	e := &ExitError{Status: -1, Reason: err.Error()}
	var exit *ssh.ExitError
	var missing *ssh.ExitMissingError
	switch {
	case errors.As(err, &exit) && exit.Signal() != "":
		e.Reason = "it was killed by SIG" + exit.Signal()
	case errors.As(err, &exit):
		e.Status, e.Reason = exit.ExitStatus(), fmt.Sprintf("it ended with status %d", exit.ExitStatus())
	case errors.As(err, &missing):
		e.Reason = "the connection was lost"
	}
	if last := lastOf([]byte(stderr.String())); last != "" {
		e.Reason += ": " + last
	}
	return e
}

// The times between two questions for a session.
const firstWait, longestWait = 20 * time.Millisecond, time.Second

// open opens a session. While the server has as many of this connection as it allows, it waits for the end of one.
func (c *Client) open(ctx context.Context) (*ssh.Session, error) {
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		client, err := c.connect(ctx)
		if err != nil {
			return nil, err
		}
		session, err := newSession(ctx, client)
		if err == nil {
			return session, nil
		}
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) {
			return nil, fmt.Errorf("the connection to %s was lost: %w", c, err)
		}
		if refused.Reason == ssh.Prohibited || refused.Reason == ssh.UnknownChannelType {
			return nil, fmt.Errorf("%s allows no sessions: %w", c, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s allows no more sessions (MaxSessions): %w", c, err)
		case <-time.After(wait):
		}
	}
}

// newSession is client.NewSession, except that it returns when ctx ends.
func newSession(ctx context.Context, client *ssh.Client) (*ssh.Session, error) {
	type opened struct {
		session *ssh.Session
		err     error
	}
	answer := make(chan opened, 1)
	go func() { // ends with the connection, if the server does not answer
		s, err := client.NewSession()
		answer <- opened{s, err}
	}()
	select {
	case o := <-answer:
		return o.session, o.err
	case <-ctx.Done():
		go func() {
			if o := <-answer; o.err == nil {
				o.session.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// command quotes the words as a command line for the user's login shell: sh, bash, zsh, fish or csh.
func command(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return "exec " + strings.Join(quoted, " ")
}

// outside moves characters out of the apostrophes that some shell changes between them. Behind a backslash no shell
// changes them.
var outside = strings.NewReplacer(`'`, `'\''`, `\`, `'\\'`, `!`, `'\!'`)

func quote(word string) string { return "'" + outside.Replace(word) + "'" }

// lastOf is the last line of a text, and not too much of it.
func lastOf(text []byte) string {
	text = bytes.TrimSpace(text)
	text = text[bytes.LastIndexByte(text, '\n')+1:]
	return strings.ToValidUTF8(string(text[max(0, len(text)-300):]), "?")
}

// tail keeps the end of what is written.
type tail struct {
	mu  sync.Mutex
	end []byte
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b[max(0, len(b)-tailSize):]...)
	t.end = t.end[max(0, len(t.end)-tailSize):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}

// limited is a buffer that ends what writes too much. It must not have the buffer's ReadFrom, by which io.Copy would
// go around Write.
type limited struct {
	buffer bytes.Buffer
	end    io.Closer
	over   bool
}

func (l *limited) Write(b []byte) (int, error) {
	if l.buffer.Len()+len(b) > MaxOutput+maxNoise {
		l.over = true
		return 0, errors.Join(errors.New("too long"), l.end.Close())
	}
	return l.buffer.Write(b)
}
