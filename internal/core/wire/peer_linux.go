// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wire

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrPeerGone means that the process at the other end has ended.
var ErrPeerGone = errors.New("the process at the other end has ended")

// KillPeer sends SIGKILL to the process at the other end: the one that connected, or the one that listens. It never
// kills a process that has reused the pid. It returns a pidfd of the killed process, which becomes readable when the
// process is dead; the caller closes it.
func (t *Transport) KillPeer() (*os.File, error) {
	fd, err := t.peerPidFD()
	if err != nil {
		return nil, err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		unix.Close(fd)
		if err == unix.ESRCH {
			return nil, ErrPeerGone
		}
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

func (t *Transport) peerPidFD() (fd int, err error) {
	cerr := t.control(func(sock int) { fd, err = unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PEERPIDFD) })
	if cerr != nil {
		return -1, cerr
	}
	switch err {
	case nil:
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
		return fd, err
	case unix.ENODATA, unix.ESRCH:
		return -1, ErrPeerGone
	case unix.ENOPROTOOPT:
		return t.peerByPid()
	default:
		return -1, err
	}
}

// peerByPid returns a pidfd of the process at the other end, for kernels before Linux 6.5. It fails if
// the socket has hung up: another process may then have reused the pid.
func (t *Transport) peerByPid() (fd int, err error) {
	cred, err := t.peer()
	if err != nil {
		return -1, err
	}
	if fd, err = unix.PidfdOpen(int(cred.Pid), 0); err != nil {
		return -1, ErrPeerGone
	}
	gone := false
	cerr := t.control(func(sock int) {
		p := []unix.PollFd{{Fd: int32(sock), Events: unix.POLLOUT}}
		_, perr := unix.Poll(p, 0)
		gone = perr != nil || p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	if cerr != nil || gone {
		unix.Close(fd)
		return -1, errors.Join(ErrPeerGone, cerr)
	}
	return fd, nil
}
