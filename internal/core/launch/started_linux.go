// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// deathTimeout is how long a killed launcher may take to exit. It takes less than a millisecond if a processor is free,
// even if it waits for a file system that hangs, as long as the kernel can interrupt the call.
const deathTimeout = 10 * time.Second

// Started sends the spec to the launcher. It returns nil when the program runs, or has run: a program that exits
// immediately was started. If Started returns an error (an *Error), the process has been killed and reaped; if
// the kernel can't end it yet, it is reaped in the background. If ctx ends first, the error names the hanging step.
func (p *Process) Started(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = p.status.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	_, err := p.status.Write(p.spec)
	p.spec = nil
	var reply []byte
	if !errors.Is(err, os.ErrDeadlineExceeded) { // even a launcher that died may have sent its reason
		reply, err = p.readReply()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		e := p.hung(ctx)
		if _, gone := p.discard(); !gone {
			e.Message += "; the kernel can't end its process yet"
		}
		return e
	}
	if refused := (*Error)(nil); errors.As(err, &refused) {
		p.discard()
		return refused
	}
	announced := len(reply) > 0 && reply[0] == statusExec
	if announced {
		reply = reply[1:]
	}
	if e := decodeError(reply); e != nil {
		p.discard()
		return e
	}
	if announced && p.executed() {
		p.status.Close()
		return nil
	}
	stage := p.stage()
	ws, _ := p.discard()
	return p.died(stage, ws)
}

// readReply reads until the launcher's end of the socket is closed, by its exit or by execve.
func (p *Process) readReply() ([]byte, error) {
	b := make([]byte, 0, 512)
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, ns, err := p.receive(b[len(b):cap(b)])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return b, err
		}
		if ns != nil {
			if err := p.keepMounts(ns); err != nil {
				return b, err
			}
			continue
		}
		b = b[:len(b)+n]
		if err != nil || n == 0 { // EOF, or ECONNRESET if the launcher died with the spec unread
			return b, nil
		}
	}
}

// receive calls recvmsg(2) on the status socket. It gives up at the socket's deadline. ns is the descriptor that comes
// with statusMounts.
func (p *Process) receive(b []byte) (n int, ns *os.File, err error) {
	raw, err := p.status.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	oob := make([]byte, unix.CmsgSpace(4))
	var noob int
	if rerr := raw.Read(func(fd uintptr) bool {
		for {
			n, noob, _, _, err = unix.Recvmsg(int(fd), b, oob, unix.MSG_CMSG_CLOEXEC)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	}); rerr != nil {
		return 0, nil, rerr
	}
	if err != nil || noob == 0 {
		return max(n, 0), nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:noob])
	if err != nil {
		return 0, nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, nil, err
	}
	return n, os.NewFile(uintptr(fds[0]), "mount namespace"), nil
}

// keepMounts passes the namespace to KeepMounts and lets the launcher continue.
func (p *Process) keepMounts(ns *os.File) error {
	if p.KeepMounts == nil {
		ns.Close()
	} else if err := p.KeepMounts(ns); err != nil {
		return &Error{Stage: StageDevices, Message: err.Error()}
	}
	_, _ = p.status.Write([]byte{statusMounts}) // if the launcher is dead, the next read reports it
	return nil
}

// executed reports whether execve succeeded. A closed status socket is no proof, because a kill in the middle of execve
// closes it too. The process's name is: execve changes it just after it closes the files, and a zombie keeps it.
func (p *Process) executed() bool {
	name := processName(StageExec)
	for i := 0; ; i++ {
		dead := task.Dead(p.pidfd, 0) // check this first: the name of a dead process no longer changes
		comm, err := p.comm()
		switch {
		case err == nil && comm != name:
			return true
		case dead && err == nil && p.exited():
			return true // the program has the launcher's name
		case err != nil, dead:
			return false
		case i > 1000: // execve takes less time: the program's file has the launcher's name
			return true
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// exited reports whether a dead process was the program, not the launcher: it ended with an exit code, and its record
// still has the mark, which a launcher removes before it exits.
func (p *Process) exited() bool {
	if task.ReadProgress(p.record) != task.ProgressExecuted {
		return false
	}
	const codeExited = 1 // CLD_EXITED
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, p.PID, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Code == codeExited
}

// comm returns the process's name, proc_pid_comm(5).
func (p *Process) comm() (string, error) {
	b, err := readSmall(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/comm", p.PID))
	return strings.TrimSuffix(string(b), "\n"), err
}

// readSmall reads a small kernel file in one call, without the runtime's poller.
func readSmall(dir int, path string) ([]byte, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 256)
	n, err := unix.Read(fd, b)
	return b[:max(n, 0)], err
}

// stage returns the launcher's current step, which is in the name of its process.
func (p *Process) stage() Stage {
	comm, err := p.comm()
	stage, ok := strings.CutPrefix(comm, namePrefix)
	if err != nil || !ok {
		return StageSetup
	}
	return Stage(stage)
}

func (p *Process) hung(ctx context.Context) *Error {
	e := &Error{Stage: p.stage(), Errno: unix.ETIMEDOUT}
	if ctx.Err() == context.Canceled {
		e.Errno = unix.ECANCELED
	}
	switch e.Stage {
	case StageNetwork:
		e.Message = fmt.Sprintf("network namespace %q does not respond: its file system hangs", p.netns)
	case StageDevices:
		e.Message = fmt.Sprintf("devices of command %q do not respond: a file system hangs", p.program)
	case StageWorkDir:
		e.Message = fmt.Sprintf("work_dir %q does not respond: its file system hangs", p.dir)
	case StageProgram, StageExec:
		e.Message = fmt.Sprintf("command %q does not respond: its file system hangs", p.program)
	default:
		e.Message = fmt.Sprintf("command %q was not started in time: the launcher did not finish step %q", p.program, e.Stage)
	}
	return e
}

// died returns the error for a launcher that ended without sending one.
func (p *Process) died(stage Stage, ws unix.WaitStatus) *Error {
	e := &Error{Stage: stage}
	switch {
	case ws.Signaled() && ws.Signal() == unix.SIGKILL:
		e.Message = fmt.Sprintf("command %q was killed (SIGKILL) before it ran: the task was stopped, or its memory limit "+
			"is too low to start a program", p.program)
	case ws.Signaled():
		e.Message = fmt.Sprintf("command %q was killed by %s before it ran", p.program, unix.SignalName(ws.Signal()))
	case ws.Exited():
		e.Message = fmt.Sprintf("launcher of command %q exited with code %d in step %q", p.program, ws.ExitStatus(), stage)
	default:
		e.Message = fmt.Sprintf("launcher of command %q ended in step %q, for an unknown reason", p.program, stage)
	}
	return e
}

// notWaited means that the wait status is unknown. No ended process has this status: see WIFCONTINUED of wait(2).
const notWaited unix.WaitStatus = 0xffff

// discard kills and reaps the process, and closes its descriptors. If the process does not die within deathTimeout,
// gone is false, and the process is reaped in the background. ws is notWaited then, or if another caller has reaped it.
func (p *Process) discard() (ws unix.WaitStatus, gone bool) {
	p.status.Close()
	_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
	fd := p.TakePidFD()
	if task.Dead(fd, deathTimeout) {
		pid, _ := unix.Wait4(p.PID, &ws, unix.WNOHANG, nil)
		if pid != p.PID { // ECHILD
			ws = notWaited
		}
		unix.Close(fd)
		return ws, true
	}
	// a frozen process, or one in a faulty kernel driver, does not die yet: a thread waits until it does
	go func() {
		_, _ = unix.Wait4(p.PID, nil, 0, nil)
		unix.Close(fd)
	}()
	return notWaited, false
}
