// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"os/exec"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// The parent of a process gets its exit status from waitid(2). On Linux 6.15 and later, any process gets it from a
// pidfd that was opened before the process was reaped (PIDFD_GET_INFO with PIDFD_INFO_EXIT,
// include/uapi/linux/pidfd.h). If neither has it, the exit is lost; it is never guessed. (It can't be read from a
// zombie's /proc/<pid>/stat. An init reaps immediately: of 100 tasks on Linux 6.1, none was ever seen as a zombie.)

// childInfo is siginfo_t of waitid(2), on 64-bit machines.
type childInfo struct {
	Signo, Errno, Code, _ int32
	PID                   int32
	UID                   uint32
	Status                int32
	_                     [100]byte
}

const codeExited = 1 // CLD_EXITED: Status is a code, not a signal

// childExit returns how a dead child ended, and does not reap it. It returns nil if the process is not a child. If a
// debugger traces the child, childExit first blocks until the debugger has waited for the child or has ended.
func childExit(pid int) *task.Exit {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		var info childInfo
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, 0, 0)
		switch {
		case errno == unix.ECHILD:
			return nil
		case errno != 0 || info.PID == 0: // interrupted, or not available yet
			time.Sleep(wait)
		case info.Code == codeExited:
			return &task.Exit{At: time.Now(), Code: int(info.Status)}
		default:
			return &task.Exit{At: time.Now(), Signal: int(info.Status)}
		}
	}
}

// observeExit returns how a process that is not our child ended. The exit status is in the pidfd only after the parent
// has reaped the process. observeExit waits at most 10 s for that, since an init may be slow.
func observeExit(pidfd int) *task.Exit {
	return witness{
		status: func() (unix.WaitStatus, bool) { return pidfdExit(pidfd) },
		reaped: func() bool { return reaped(pidfd) },
	}.exit(time.Now().Add(10 * time.Second))
}

// witness observes the exit of another process's child through its pidfd.
type witness struct {
	status func() (unix.WaitStatus, bool)
	reaped func() bool
}

func (w witness) exit(deadline time.Time) *task.Exit {
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		reaped := w.reaped() // call this before status: after the hangup, the exit status is available, or never will be
		ws, ok := w.status()
		if ok {
			return exitOf(ws)
		}
		if reaped {
			return lost("the process ended while no supervisor was its parent, and this kernel (before Linux 6.15) " +
				"reports an exit status only to the parent")
		}
		if time.Now().After(deadline) {
			return lost("the process ended while no supervisor was its parent, and its parent does not reap it")
		}
		time.Sleep(wait)
	}
}

func exitOf(ws unix.WaitStatus) *task.Exit {
	e := &task.Exit{At: time.Now()}
	if ws.Signaled() {
		e.Signal = int(ws.Signal())
	} else {
		e.Code = ws.ExitStatus()
	}
	return e
}

func lost(reason string) *task.Exit {
	return &task.Exit{Lost: true, Reason: reason, At: time.Now()}
}

// pidfdInfo is the first version of struct pidfd_info in include/uapi/linux/pidfd.h.
type pidfdInfo struct {
	Mask, CgroupID                                   uint64
	PID, TGID, PPID                                  uint32
	RUID, RGID, EUID, EGID, SUID, SGID, FSUID, FSGID uint32
	ExitCode                                         int32
	CoredumpMask, Spare                              uint32
}

const (
	pidfdInfoExit = 1 << 3 // PIDFD_INFO_EXIT
	// _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
	pidfdGetInfo = 3<<30 | unsafe.Sizeof(pidfdInfo{})<<16 | 0xFF<<8 | 11
)

func pidfdExit(pidfd int) (unix.WaitStatus, bool) {
	info := pidfdInfo{Mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	return unix.WaitStatus(info.ExitCode), errno == 0 && info.Mask&pidfdInfoExit != 0
}

// reaped reports whether the process of a pidfd has been reaped: the pidfd has then hung up (POLLHUP).
func reaped(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	_, err := unix.Poll(p, 0)
	if err == nil && p[0].Revents&unix.POLLHUP != 0 {
		return true
	}
	// on older kernels the pidfd does not hang up, but sending a signal fails
	return unix.PidfdSendSignal(pidfd, 0, nil, 0) == unix.ESRCH
}

// SupportsPidfdExit reports whether this kernel provides the exit status of a reaped process through its pidfd (Linux
// 6.15 and later). It tests this with a child process.
func SupportsPidfdExit() bool {
	pidfd := -1
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{argv0, roleNoFile} // a role that exits immediately
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &pidfd}
	err := cmd.Start()
	if err != nil {
		return false
	}
	defer unix.Close(pidfd)
	_ = cmd.Wait()
	_, ok := pidfdExit(pidfd)
	return ok
}
