// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

// Cmd is a command to run in the VM, as exec.Cmd is one to run here. It runs as root.
type Cmd struct {
	Args []string // a program, looked for in the usual directories if it has no slash, and its arguments
	Env  []string // nil is this process's, and what Options adds
	Dir  string   // empty is this process's, which the VM has, too

	Stdin          io.Reader // nil is /dev/null. It is read until the command ends; the last read may be lost.
	Stdout, Stderr io.Writer // nil discards
}

// ExitError is the end of a command that did not exit with 0.
type ExitError struct {
	Code   int
	Signal syscall.Signal // the signal that killed it, or 0
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("killed by signal %d (%v)", e.Signal, e.Signal)
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Run runs a command and waits for it. The error is an *ExitError if the command did not exit with 0. Any other error
// is the VM's, with the end of its console. When ctx ends, the command and all its processes are killed. Processes
// that it leaves when it ends by itself live on; their output is lost a minute later.
func (v *VM) Run(ctx context.Context, c Cmd) error {
	if len(c.Args) == 0 {
		return errors.New("no command given")
	}
	r := wire.Run{Args: c.Args, Env: c.Env, Dir: c.Dir, Stdin: c.Stdin != nil}
	if r.Env == nil {
		r.Env = append(environment(), v.env...)
	}
	if r.Dir == "" {
		var err error
		if r.Dir, err = os.Getwd(); err != nil {
			return err
		}
	}
	command, err := json.Marshal(r)
	if err != nil {
		return err
	}
	s, err := v.client.NewSession()
	if err != nil {
		return v.machine.explain(fmt.Errorf("the VM does not answer: %w", err))
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	var one sync.Mutex // the two may be the same
	s.Stdout, s.Stderr = &locked{&one, c.Stdout}, &locked{&one, c.Stderr}
	if c.Stdin != nil {
		in, err := s.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			io.Copy(in, c.Stdin)
			in.Close()
		}()
	}
	if err = s.Start(string(command)); err == nil {
		err = s.Wait()
	}
	var exit *ssh.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return v.machine.explain(fmt.Errorf("the VM has gone away while it ran %s: %w", c.Args[0], err))
	case exit.Signal() == wire.NotStarted:
		return fmt.Errorf("failed to run %s in the VM: %s", c.Args[0], exit.Msg())
	case exit.Signal() != "":
		signal, err := strconv.Atoi(exit.Signal())
		return errors.Join(&ExitError{Signal: syscall.Signal(signal)}, err)
	}
	return &ExitError{Code: exit.ExitStatus()}
}

// locked is a writer that shares a lock with others. It may have none, and discards then.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	if l.w == nil {
		return len(p), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Dial connects to a TCP address as the VM sees it, such as localhost:4646.
func (v *VM) Dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := v.client.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("failed to connect to %s in the VM: %w", address, err)
	}
	return c, nil
}

// Output runs a command and returns its output, both streams in one.
func (v *VM) Output(ctx context.Context, args ...string) (string, error) {
	var b bytes.Buffer
	err := v.Run(ctx, Cmd{Args: args, Stdout: &b, Stderr: &b})
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return b.String(), err
}
