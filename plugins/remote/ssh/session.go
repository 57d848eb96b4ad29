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

// maxOutput is the limit of the output of Run with what the login shell writes, in bytes. More is an error.
const maxOutput = 1 << 20

// Run runs a script of sh(1) with arguments and returns its standard output, without what the login shell writes before
// it. The script need not read all of the input. The input may be read for a moment after Run has returned. The end of
// the context ends the connection.
func (c *Conn) Run(ctx context.Context, input io.Reader, script string, args ...string) ([]byte, error) {
	defer c.endWith(ctx)()
	mark := "outrider-" + rand.Text()
	p, err := c.start("/bin/sh", append([]string{"-c", "echo " + mark + "; " + script, "sh"}, args...))
	if err != nil {
		return nil, err
	}
	defer p.Close()
	go func() { // ends with the session
		if input != nil {
			_, _ = io.Copy(p.input, input) // an error: the script ended before it has read all
		}
		_ = p.input.Close()
	}()

	all, err := io.ReadAll(io.LimitReader(p, maxOutput+1))
	noise, output, found := bytes.Cut(all, []byte(mark+"\n"))
	switch {
	case len(all) > maxOutput:
		return nil, fmt.Errorf("the command on %s wrote more than %d bytes", c.config, maxOutput)
	case !found:
		return nil, c.lostOr(fmt.Errorf("%s runs no commands: its login shell, which has to be sh, bash, dash or zsh, or a "+
			"forced command wrote %q", c.config, lastLine(append(noise, p.stderr.end...))))
	}
	return output, err
}

// Start starts a program and returns a connection to its standard input and output. The output begins with what the
// login shell writes. At its end, Read returns io.EOF if the program succeeded, otherwise an error that tells how it
// ended. Close ends the input; it does not stop a program that goes on then. Deadlines are not supported. The end of
// the context ends the connection to the host, until Start returns.
func (c *Conn) Start(ctx context.Context, program string, args ...string) (net.Conn, error) {
	defer c.endWith(ctx)()
	p, err := c.start(program, args)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (c *Conn) start(program string, args []string) (*programConn, error) {
	session, err := c.client.NewSession()
	if err != nil { // sshd may have read this request together with the end of the last session, and not freed that yet
		session, err = c.client.NewSession()
	}
	if err != nil {
		return nil, c.lostOr(fmt.Errorf("%s allows no more sessions (MaxSessions): %w", c.config, err))
	}
	p := &programConn{conn: c, session: session}
	session.Stderr = &p.stderr
	p.input, err = session.StdinPipe()
	if err == nil {
		p.output, err = session.StdoutPipe()
	}
	if err == nil {
		err = session.Start(command(program, args))
	}
	if err != nil {
		session.Close()
		return nil, c.lostOr(fmt.Errorf("%s did not start %s: %w", c.config, program, err))
	}
	return p, nil
}

// command quotes the words for a login shell of POSIX.
func command(program string, args []string) string {
	line := "exec"
	for _, word := range append([]string{program}, args...) {
		line += " '" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return line
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

func (p *programConn) Read(b []byte) (int, error) {
	n, err := p.output.Read(b)
	if n > 0 || err == nil {
		return n, nil
	}
	p.once.Do(func() { p.end = p.wait() })
	return 0, p.end
}

// wait returns the error of Read at the end of the output.
func (p *programConn) wait() error {
	err := p.session.Wait()
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return io.EOF
	case !errors.As(err, &exit):
		return p.conn.lostOr(fmt.Errorf("the host did not report how it ended: %w", err))
	}
	how := fmt.Sprintf("it ended with status %d", exit.ExitStatus())
	if exit.Signal() != "" {
		how = "it was killed by SIG" + exit.Signal()
	}
	if last := lastLine(p.stderr.end); last != "" {
		how += ": " + last
	}
	return errors.New(how)
}

func (p *programConn) Write(b []byte) (int, error) {
	n, err := p.input.Write(b)
	if err != nil {
		err = p.conn.lostOr(fmt.Errorf("the program on %s reads no more: %w", p.conn.config, io.ErrClosedPipe))
	}
	return n, err
}

// Close closes the session, and so the input. Package ssh allows no CloseWrite during a Write.
func (p *programConn) Close() error {
	_ = p.session.Close() // an error: it was closed before
	return nil
}

func (p *programConn) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "ssh", Net: "unix"} }
func (p *programConn) RemoteAddr() net.Addr             { return p.LocalAddr() }
func (p *programConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (p *programConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (p *programConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// tail keeps the end of what is written, which may be read after the session's Wait.
type tail struct{ end []byte }

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.end = append(t.end, b...)
	t.end = t.end[max(0, len(t.end)-tailSize):]
	return len(b), nil
}
