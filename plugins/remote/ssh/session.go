// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bytes"
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

// MaxOutput is the limit of the output of Run, in bytes. More is an error.
const MaxOutput = 1 << 20

// maxNoise is how much the login shell may write before the script's output.
const maxNoise = 256 << 10

// ExitError is the end of a script or a program that failed.
type ExitError struct {
	Status int    // -1: it was killed by a signal, or the host did not report its end
	Reason string // human-readable, with the last line of its standard error
}

func (e *ExitError) Error() string { return e.Reason }

// oneLine makes one line of a script, which printf(1) reverses: csh allows no line feed between apostrophes.
var oneLine = strings.NewReplacer(`\`, `\\`, "\n", `\n`)

// Run runs a script of sh(1) with arguments and returns its standard output, without what the login shell writes before
// it. The script need not read all of the input. The input may be read for a moment after Run has returned. The error
// of a script that fails is an ExitError.
func (c *Conn) Run(ctx context.Context, input io.Reader, script string, args ...string) ([]byte, error) {
	session, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer session.Close()

	mark := "outrider-" + rand.Text()
	stdout := limited{closer: session}
	var stderr tail
	session.Stdout, session.Stderr = &stdout, &stderr
	if input != nil {
		stdin, err := session.StdinPipe() // unlike Stdin, it is no error if the script ends before it has read all
		if err != nil {
			return nil, err
		}
		go func() { // ends with the session
			defer stdin.Close()
			_, _ = io.Copy(stdin, input)
		}()
	}
	run := "echo " + mark + `; eval "shift; $(printf %b "$1")"`
	words := append([]string{"/bin/sh", "-c", run, "sh", oneLine.Replace(script)}, args...)
	err = bounded(ctx, func() error { return session.Run(command(words)) }, session)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil, fmt.Errorf("the command on %s did not end in time: %w", c.config, ctx.Err())
	}
	if stdout.exceeded { // which closed the session
		return nil, tooMuchOutput(c)
	}
	var exit *ssh.ExitError
	if err != nil && !errors.As(err, &exit) {
		if lost := c.lost(); lost != nil {
			return nil, lost
		}
	}
	noise, output, found := bytes.Cut(stdout.buffer.Bytes(), []byte(mark+"\n"))
	switch {
	case len(output) > MaxOutput:
		return nil, tooMuchOutput(c)
	case !found:
		return nil, c.explainNoShell(err, append(noise, stderr.String()...))
	case err != nil:
		return output, explainExit(err, &stderr)
	}
	return output, nil
}

func tooMuchOutput(c *Conn) error {
	return fmt.Errorf("the command on %s wrote more than %d bytes", c.config, MaxOutput)
}

// bounded returns when f does, or when ctx ends. In the second case it closes what f waits for but does not wait for f:
// the server may confirm that only when the program ends.
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

// Start starts a program and returns a connection to its standard input and output. The output begins with what the
// login shell writes. At its end, Read returns an error that wraps io.EOF: io.EOF itself if the program succeeded,
// otherwise an ExitError, too. If the connection to the host was lost, Read and Write return an error that does not
// wrap io.EOF. Close ends the input; it does not stop a program that goes on then. Deadlines are not supported.
func (c *Conn) Start(ctx context.Context, program string, args ...string) (net.Conn, error) {
	session, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	p := &programConn{conn: c, session: session}
	session.Stderr = &p.stderr
	p.input, err = session.StdinPipe()
	if err == nil {
		p.output, err = session.StdoutPipe()
	}
	if err == nil {
		err = bounded(ctx, func() error { return session.Start(command(append([]string{program}, args...))) }, session)
	}
	if err == nil {
		return p, nil
	}

	session.Close()
	if ctx.Err() == nil {
		if lost := c.lost(); lost != nil {
			return nil, lost
		}
	}
	return nil, fmt.Errorf("%s did not start %s: %w", c.config, program, err)
}

// programConn is the standard input and output of a program.
type programConn struct {
	conn    *Conn
	session *ssh.Session
	input   io.WriteCloser
	output  io.Reader
	stderr  tail
	once    sync.Once
	end     error // of the output
}

var _ net.Conn = (*programConn)(nil)

func (p *programConn) Read(b []byte) (int, error) {
	n, err := p.output.Read(b)
	if n > 0 || err == nil {
		return n, nil
	}
	p.once.Do(func() { p.end = p.wait() })
	return 0, p.end
}

// exitTime is how long a program that has closed its output may take to end until that is not waited for.
const exitTime = 2 * time.Second

// wait returns the error of Read at the end of the output.
func (p *programConn) wait() error {
	ended := make(chan error, 1)
	go func() { ended <- p.session.Wait() }() // ends with the program, or with the connection
	var err error
	select {
	case err = <-ended:
	case <-time.After(exitTime):
	}
	if err == nil {
		return io.EOF
	}
	var exit *ssh.ExitError
	if !errors.As(err, &exit) {
		if lost := p.conn.lost(); lost != nil {
			return lost
		}
	}
	return fmt.Errorf("%w: %w", explainExit(err, &p.stderr), io.EOF)
}

func (p *programConn) Write(b []byte) (int, error) {
	n, err := p.input.Write(b)
	if err == nil {
		return n, nil
	}
	if lost := p.conn.lost(); lost != nil {
		return n, lost
	}
	return n, fmt.Errorf("the program on %s reads no more: %w", p.conn.config, io.ErrClosedPipe)
}

// Close closes the session, and so the input. Package ssh allows no CloseWrite during a Write.
func (p *programConn) Close() error {
	if err := p.session.Close(); !errors.Is(err, io.EOF) { // EOF: it was closed before
		return err
	}
	return nil
}

func (p *programConn) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "ssh", Net: "unix"} }
func (p *programConn) RemoteAddr() net.Addr             { return p.LocalAddr() }
func (p *programConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (p *programConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (p *programConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// The pauses between two attempts to open a session.
const firstPause, longestPause = 20 * time.Millisecond, 250 * time.Millisecond

// open opens a session. If the server has as many of this connection as it allows, open waits for the end of one, as
// long as Dial may take.
func (c *Conn) open(ctx context.Context) (*ssh.Session, error) {
	waiting, cancel := context.WithTimeout(ctx, c.config.timeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		session, err := c.newSession(ctx)
		var refused *ssh.OpenChannelError
		switch {
		case err == nil:
			return session, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%s did not open a session in time: %w", c.config, ctx.Err())
		case !errors.As(err, &refused):
			if lost := c.lost(); lost != nil {
				return nil, lost
			}
			return nil, fmt.Errorf("%s did not open a session: %w", c.config, err)
		case refused.Reason == ssh.Prohibited || refused.Reason == ssh.UnknownChannelType:
			return nil, fmt.Errorf("%s allows no sessions: %w", c.config, err)
		}
		select {
		case <-waiting.Done():
			return nil, fmt.Errorf("%s allows no more sessions (MaxSessions): %w", c.config, err)
		case <-time.After(pause):
		}
	}
}

// newSession is client.NewSession bounded by ctx.
func (c *Conn) newSession(ctx context.Context) (*ssh.Session, error) {
	var session *ssh.Session
	opened := make(chan error, 1)
	go func() { // ends with the connection, if the server does not answer
		var err error
		session, err = c.client.NewSession()
		opened <- err
	}()
	select {
	case err := <-opened:
		return session, err
	case <-ctx.Done():
		go func() {
			if <-opened == nil {
				session.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// command quotes the words for the login shell: sh, bash, zsh, fish or csh.
func command(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = "'" + outside.Replace(word) + "'"
	}
	return "exec " + strings.Join(quoted, " ")
}

// outside moves characters out of the apostrophes that some shell changes between them. After a backslash no shell
// changes them.
var outside = strings.NewReplacer(`'`, `'\''`, `\`, `'\\'`, `!`, `'\!'`)

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

// limited is a buffer that closes the source of too much. It does not have the buffer's ReadFrom, by which io.Copy
// would bypass Write.
type limited struct {
	buffer   bytes.Buffer
	closer   io.Closer
	exceeded bool
}

func (l *limited) Write(b []byte) (int, error) {
	if l.buffer.Len()+len(b) > MaxOutput+maxNoise {
		l.exceeded = true
		return 0, errors.Join(errors.New("too long"), l.closer.Close())
	}
	return l.buffer.Write(b)
}
