// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/term"
)

// Shell runs a command on this process's terminal, its stdin and stdout, until the command ends. A failure of the
// command is not an error.
func (v *VM) Shell(ctx context.Context, c Cmd) error {
	fd := int(os.Stdin.Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return fmt.Errorf("failed to use the terminal: %w", err)
	}
	defer term.Restore(fd, old)
	c.Stdin, c.Stdout = os.Stdin, os.Stdout
	c.terminal = true
	err = v.Run(ctx, c)
	var exit *ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// terminalSize is the size of this process's terminal.
func terminalSize() (rows, columns int) {
	columns, rows, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || columns == 0 || rows == 0 {
		return 24, 80
	}
	return rows, columns
}

// giveTerminal gives the session a terminal of the same size, and updates the size until stop is called.
func giveTerminal(s *ssh.Session) (stop func()) {
	rows, columns := terminalSize()
	s.RequestPty("", rows, columns, nil) // without one, the command runs on pipes
	s.WindowChange(rows, columns)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for range changed {
			s.WindowChange(terminalSize())
		}
	}()
	return func() {
		signal.Stop(changed)
		close(changed)
	}
}
