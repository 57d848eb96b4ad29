// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// pty is a pseudo-terminal in raw mode: what stands for a serial port.
type pty struct {
	name   string   // "/dev/pts/7"
	master *os.File // the stick's side
	port   *os.File // the tasks' side, held open, so that the last task to close it is no end
}

func openPty() (*pty, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	p := &pty{master: master}
	if err := p.open(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pty) open() error {
	var number uint32
	err := control(p.master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
		number = n
		return err
	})
	if err != nil {
		return err
	}
	p.name = fmt.Sprintf("/dev/pts/%d", number)
	if p.port, err = os.OpenFile(p.name, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0); err != nil {
		return err
	}
	return control(p.port, func(fd int) error {
		mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		// cfmakeraw(3)
		mode.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP |
			unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
		mode.Oflag &^= unix.OPOST
		mode.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		mode.Cflag = mode.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
		return unix.IoctlSetTermios(fd, unix.TCSETS, mode)
	})
}

// close hangs up whoever has the port open.
func (p *pty) close() {
	if p.port != nil {
		p.port.Close()
	}
	p.master.Close()
}

func control(f *os.File, do func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil {
		return err
	}
	return failed
}
