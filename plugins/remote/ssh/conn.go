// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

const (
	connectTime = 15 * time.Second // for the TCP connection and the key exchange
	startTime   = 30 * time.Second // how long Start waits until the script runs
	silentTime  = 20 * time.Second // how long ssh waits for a response of the host before it closes the connection
)

// Conn is the standard input and output of a script on a host. It is a net.Conn.
type Conn struct {
	*os.File // a socket; the other end is ssh's standard input and output
	output   *bufio.Reader
	ctx      context.Context // ends with the connection
	cancel   context.CancelCauseFunc

	ended  chan struct{} // closed when ssh has ended; the fields below are set then
	stderr plain.Tail
	status int   // the script's exit status, or one of the constants killed and lost
	end    error // returned by Read
}

const (
	killed = -1  // ssh was ended by a signal
	lost   = 255 // ssh has lost the connection, or failed to connect
)

// Start starts a script with sh(1) on the host, and returns when the script runs. The connection ends when ctx ends.
// The configuration must have passed Check.
func (c Config) Start(ctx context.Context, script string, args ...string) (*Conn, error) {
	mark := "outrider-" + rand.Text() // the login shell may print something before this mark
	words := append([]string{"/bin/sh", "-c", "echo " + mark + "; " + script, "sh"}, args...)
	conn, err := c.launch(ctx, "exec "+quote(words))
	if err != nil {
		return nil, err
	}

	limit := time.AfterFunc(startTime, func() { conn.cancel(fmt.Errorf("the host ran no command within %v", startTime)) })
	var line, last string
	for err == nil && !strings.HasSuffix(line, mark) {
		last = cmp.Or(line, last)
		line, err = conn.ReadLine()
	}
	if limit.Stop() && err == nil {
		return conn, nil
	}
	_ = conn.Close()
	switch conn.status {
	case killed:
		return nil, cmp.Or(err, conn.end)
	case lost:
		return nil, c.explain(string(conn.stderr))
	}
	return nil, fmt.Errorf("%s runs no commands: its login shell (which must be sh, bash, dash or zsh) or a "+
		"forced command wrote %q", c, lastLine(cmp.Or(string(conn.stderr), line, last)))
}

// launch starts ssh with an empty environment.
func (c Config) launch(ctx context.Context, remote string) (conn *Conn, err error) {
	path, err := exec.LookPath("ssh")
	if err != nil {
		return nil, fmt.Errorf("found no ssh program on this node: install openssh-client (%w)", err)
	}
	keys, err := c.hostKeys()
	if err != nil {
		return nil, fmt.Errorf("failed to copy the host keys: %w", err)
	}
	defer func() {
		if conn == nil {
			keys.Close()
		}
	}()
	words, err := c.command(path, keys.Name(), 0)
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("failed to make a socket for ssh: %w", err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "ssh"), os.NewFile(uintptr(fds[1]), "ssh")
	defer far.Close()

	conn = &Conn{File: near, output: bufio.NewReaderSize(near, 64<<10), ended: make(chan struct{})}
	conn.ctx, conn.cancel = context.WithCancelCause(ctx)
	cmd := exec.CommandContext(conn.ctx, path, append(words[1:], "--", c.Host, remote)...)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = far, far, &conn.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal; a process group shared by the ssh to the jump host
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		conn.cancel(err)
		near.Close()
		return nil, fmt.Errorf("failed to start ssh: %w", err)
	}
	go func() {
		_ = cmd.Wait()
		_ = keys.Close()
		conn.status = cmd.ProcessState.ExitCode()
		conn.end = c.ending(conn)
		conn.cancel(conn.end)
		close(conn.ended)
	}()
	return conn, nil
}

// ending returns the error that Read returns when ssh has ended.
func (c Config) ending(conn *Conn) error {
	last := lastLine(string(conn.stderr))
	switch {
	case conn.status == 0:
		return io.EOF
	case conn.status != killed && conn.status != lost:
		return fmt.Errorf("the remote command ended with status %d: %s", conn.status, last)
	case conn.ctx.Err() != nil:
		return fmt.Errorf("the connection to %s was closed: %w", c, context.Cause(conn.ctx))
	}
	return fmt.Errorf("the connection to %s was lost: %s", c, cmp.Or(last, "ssh was killed"))
}

// ReadLine reads a line of at most 64 KB.
func (c *Conn) ReadLine() (string, error) {
	line, err := c.output.ReadSlice('\n')
	return strings.TrimSuffix(string(line), "\n"), c.why(err)
}

// Read returns io.EOF at the end of a successful script, otherwise an error with the reason for the end.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.output.Read(b)
	return n, c.why(err)
}

func (c *Conn) why(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) { // ECONNRESET: ssh did not read all input
		return err
	}
	return c.End()
}

// End waits until ssh has ended, and returns the error that Read returns then.
func (c *Conn) End() error {
	<-c.ended
	return c.end
}

// Context returns a context that ends with the connection.
func (c *Conn) Context() context.Context { return c.ctx }

// Close ends the connection to the host, and returns when ssh has ended.
func (c *Conn) Close() error {
	c.cancel(net.ErrClosed)
	<-c.ended
	return c.File.Close()
}

// LocalAddr implements net.Conn.
func (*Conn) LocalAddr() net.Addr { return &net.UnixAddr{Name: "ssh", Net: "unix"} }

// RemoteAddr implements net.Conn.
func (*Conn) RemoteAddr() net.Addr { return &net.UnixAddr{Name: "ssh", Net: "unix"} }

var fingerprint = regexp.MustCompile(`SHA256:[A-Za-z0-9+/]+`)

// explain makes an error from what ssh has written to stderr when it failed to connect. The ssh to the jump host writes
// first: its messages are at the beginning of text.
func (c Config) explain(text string) error {
	way := c.way()
	said, _, unanswered := strings.Cut(text, "kex_exchange_identification")
	ofJump := way != nil && unanswered && said != ""
	if ofJump && strings.Contains(said, "stdio forwarding failed") {
		return fmt.Errorf("the jump host %s failed to connect to %s, or does not allow forwarding (AllowTcpForwarding)",
			way, c.address())
	}
	if ofJump {
		return fmt.Errorf("failed to use the jump host: %w", way.explain(said))
	}
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case has("Host key verification failed"):
		return fmt.Errorf("the host key of %s is not in host_keys (it is %s): add it if the host was reinstalled; "+
			"otherwise this may be another host", c.address(), cmp.Or(fingerprint.FindString(text), "unknown"))
	case has("Permission denied"), has("Too many authentication failures"):
		return fmt.Errorf("the SSH server at %s refuses user %s with %s: the user does not exist, or its authorized_keys "+
			"lacks the key, or the key has a passphrase", c.address(), c.User,
			cmp.Or(c.KeyFile, "the keys of the ssh-agent at "+c.AgentSocket))
	}
	return fmt.Errorf("failed to connect to %s: %s", c, cmp.Or(lastLine(text), "the host allows no session"))
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return plain.Line(text[strings.LastIndexByte(text, '\n')+1:], 300)
}
