// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbsim

import (
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is a pseudo-terminal in raw mode that simulates a serial port.
type terminal struct {
	master *os.File // the stick's side
	port   *os.File // the tasks' side; kept open, so the master reads no end of file when a task closes it
}

func openTerminal() (t terminal, err error) {
	if t.master, t.port, err = pty.Open(); err != nil {
		return t, err
	}
	_, err = term.MakeRaw(int(t.port.Fd()))
	if err == nil {
		err = unix.SetNonblock(int(t.master.Fd()), true) // Fd has made it blocking, which disables deadlines
	}
	if err != nil {
		t.close()
	}
	return t, err
}

// name returns the path of the tasks' side, such as "/dev/pts/7".
func (t terminal) name() string { return t.port.Name() }

// close closes both sides, which hangs up the tasks that have the port open.
func (t terminal) close() {
	t.port.Close()
	t.master.Close()
}
