// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Cmd is a command to run in the VM, like exec.Cmd on this machine. It runs as root.
type Cmd struct {
	Args []string // a program, looked for in the PATH if it has no slash, and its arguments
	Dir  string   // empty: this process's directory, which the VM has, too

	Stdin          io.Reader // nil: no input
	Stdout, Stderr io.Writer // nil discards
}

// Run runs a command in its own cgroup, with this process's environment, and waits for its end and all its output. When
// ctx ends, Run kills the command and all its processes. The error is an *ssh.ExitError if the command did not exit
// with 0; the status 127 can also mean that the program was not found. Any other error is a failure of the VM, and has
// the end of the VM's console.
func (v *VM) Run(ctx context.Context, c Cmd) error {
	if c.Dir == "" {
		var err error
		if c.Dir, err = os.Getwd(); err != nil {
			return err
		}
	}
	s, err := v.client.NewSession()
	if err != nil {
		return v.machine.explain(fmt.Errorf("the VM does not answer: %w", err))
	}
	defer s.Close()
	scope := fmt.Sprintf("/sys/fs/cgroup/system.slice/run-%d.scope", v.runs.Add(1))
	stop := context.AfterFunc(ctx, func() {
		_ = v.shell("echo 1 >" + scope + "/cgroup.kill")
		s.Close()
	})
	defer stop()
	words := []string{"exec", "env", "-i"}
	for _, word := range append(append(environment(), v.env...), c.Args...) {
		words = append(words, quote(word))
	}
	if c.Stdin != nil {
		stdin, err := s.StdinPipe()
		if err != nil {
			return v.machine.explain(fmt.Errorf("the VM does not answer: %w", err))
		}
		go func() {
			_, _ = io.Copy(stdin, c.Stdin) // fails if the command does not read all; Session.Stdin would make that an error
			stdin.Close()
		}()
	}
	s.Stdout, s.Stderr = c.Stdout, c.Stderr
	if c.Stdout == c.Stderr {
		words, s.Stderr = append(words, "2>&1"), nil
	}
	err = s.Run(fmt.Sprintf("mkdir %s && echo $$ >%[1]s/cgroup.procs && cd %s && %s", scope, quote(c.Dir),
		strings.Join(words, " ")))
	var exit *ssh.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil || errors.As(err, &exit):
		return err
	}
	return v.machine.explain(fmt.Errorf("the VM failed while it ran %s: %w", c.Args[0], err))
}

// shell runs a shell command in the VM.
func (v *VM) shell(line string) error {
	s, err := v.client.NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Run(line)
}

// quote returns s as a word for the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Dial connects to a TCP address as the VM sees it, such as localhost:4646.
func (v *VM) Dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := v.client.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("failed to connect to %s in the VM: %w", address, err)
	}
	return c, nil
}

// Output runs a command and returns its combined output.
func (v *VM) Output(ctx context.Context, args ...string) (string, error) {
	var b bytes.Buffer
	err := v.Run(ctx, Cmd{Args: args, Stdout: &b, Stderr: &b})
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return b.String(), err
}
