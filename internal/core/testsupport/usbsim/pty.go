// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbsim

import (
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is a pseudo-terminal in raw mode, which stands for a serial port.
type terminal struct {
	master *os.File // the stick's side
	port   *os.File // the tasks' side; it is held open so that a task that closes it is no end of file
}

func openTerminal() (t terminal, err error) {
	if t.master, t.port, err = pty.Open(); err != nil {
		return t, err
	}
	_, err = term.MakeRaw(int(t.port.Fd()))
	if err == nil {
		err = unix.SetNonblock(int(t.master.Fd()), true) // Fd has made it blocking, without deadlines
	}
	if err != nil {
		t.close()
	}
	return t, err
}

// name is such as "/dev/pts/7".
func (t terminal) name() string { return t.port.Name() }

// close hangs up the tasks that have the port open.
func (t terminal) close() {
	t.port.Close()
	t.master.Close()
}
