// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// An exit status has three sources: waitid(2), for the parent; /proc/<pid>/stat of the
// zombie, until it is reaped, for a process that may trace it, if a test has proved that
// it is right (proof_linux.go); and, on Linux 6.15 and later, a pidfd that was opened
// before the process was reaped (PIDFD_GET_INFO with PIDFD_INFO_EXIT,
// include/uapi/linux/pidfd.h). If none has it, the exit is lost; none is ever invented.

// childInfo is siginfo_t of waitid(2), on 64-bit machines.
type childInfo struct {
	Signo, Errno, Code, _ int32
	PID                   int32
	UID                   uint32
	Status                int32
	_                     [100]byte
}

const codeExited = 1 // CLD_EXITED: Status is a code, not a signal

// peek returns how a child ended, and leaves it a zombie. It is nil if wait4 would not
// return yet: the child lives, or a debugger that traces it has not waited for it.
func peek(pid int) *task.Exit {
	var info childInfo
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
		unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, 0, 0)
	if errno != 0 || info.PID == 0 {
		return nil
	}
	e := &task.Exit{At: time.Now()}
	if info.Code == codeExited {
		e.Code = int(info.Status)
	} else {
		e.Signal = int(info.Status)
	}
	return e
}

// observeExit returns how a process ended that is not our child. It blocks until a source
// has it, at most for the time that an init may take to reap.
func (s *server) observeExit(id task.Identity, pidfd int) *task.Exit {
	return witness{
		inProc: func() (*task.Exit, bool) { return exitInProc(id, s.proved) },
		inInfo: func() (unix.WaitStatus, bool) { return pidfdExit(pidfd) },
		reaped: func() bool { return reaped(pidfd) },
	}.exit(time.Now().Add(10 * time.Second))
}

// witness is the sources for the exit of another's child: its entry in /proc while it is a
// zombie, and its pidfd once it is reaped.
type witness struct {
	inProc func() (e *task.Exit, zombie bool)
	inInfo func() (unix.WaitStatus, bool)
	reaped func() bool
}

func (w witness) exit(deadline time.Time) *task.Exit {
	// often a zombie exists for microseconds only, before an init reaps it
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		e, zombie := w.inProc()
		if e != nil {
			return e
		}
		if ws, ok := w.inInfo(); ok {
			return exitOf(ws)
		}
		if !zombie && w.reaped() {
			// the information is there before the hang-up is, so one more look is the last
			if ws, ok := w.inInfo(); ok {
				return exitOf(ws)
			}
			return lost("it ended while no supervisor was its parent, and this kernel (before Linux 6.15) does not report " +
				"it to another process")
		}
		if time.Now().After(deadline) {
			return lost("its parent does not reap it, and its exit status can't be read: it is another user's, or the kernel " +
				"is older than Linux 5.17")
		}
		time.Sleep(wait)
	}
}

// exitInProc returns how a zombie ended if /proc has it and is trusted. The proof comes
// after the reading, since it takes time, in which the zombie may go.
func exitInProc(id task.Identity, proved func() proof) (e *task.Exit, zombie bool) {
	st, err := task.ReadStat(id.PID)
	if err != nil || st.Start != id.Start || !st.Zombie {
		return nil, false
	}
	if (st.Permitted || tracesAll()) && proved().believes(st) {
		return exitOf(unix.WaitStatus(st.ExitCode)), true
	}
	return nil, true
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

// pidfdInfo is struct pidfd_info of include/uapi/linux/pidfd.h, its first version.
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

// reaped reports whether the process is reaped: its pidfd hangs up then.
func reaped(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	_, err := unix.Poll(p, 0)
	if err == nil && p[0].Revents&unix.POLLHUP != 0 {
		return true
	}
	// older kernels do not hang up, but refuse a signal
	return unix.PidfdSendSignal(pidfd, 0, nil, 0) == unix.ESRCH
}

// tracesAll reports whether this process should have the permission with which
// /proc/<pid>/stat shows the exit code of any process (ptrace(2)). A security module may
// still refuse it. Linux 5.16 and later mark what may be read (task.Stat.Permitted).
func tracesAll() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&hdr, &caps[0]) == nil && caps[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}
