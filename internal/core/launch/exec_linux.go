// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// exec is the last step: it applies the settings that would disturb the launcher itself, then calls execve. It
// returns only if the program does not run. The ruleset comes from unveil.
func (l *launcher) exec(p program, ruleset landlock.Ruleset) *Error {
	c := &l.spec.Command
	umask := uintptr(0o022)
	if c.Umask != nil {
		umask = uintptr(*c.Umask)
	}
	_, _ = call(unix.SYS_UMASK, umask)
	defaultPersonality()
	blockingStdio()
	if err := closeOnExec(); err != nil {
		return err
	}
	filter, err := seccompFilter(c.Seccomp)
	if err != nil {
		return err
	}
	if c.NoNewPrivileges || ruleset != noRuleset || filter != nil {
		if _, e := call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); e != 0 {
			return failed("set no_new_privs", e)
		}
	}
	if ruleset != noRuleset {
		e := ruleset.Restrict()
		if e != 0 {
			return failed("confine the task by Landlock", e)
		}
	}
	path := cstr(p.path)
	argv := make([]*byte, 0, len(c.Args)+2)
	argv = append(vector(vector(argv, []string{c.Path}), c.Args), nil)
	envv := append(vector(make([]*byte, 0, len(c.Env)+1), c.Env), nil)
	defaultSignals()
	if err := l.mark(); err != nil { // before the limits: with ulimit -f 0 the write would fail
		return err
	}

	// From here on, a successful start allocates no memory: under a low ulimit -v, an allocation would fail.
	if err := lowerLimits(c.Rlimits); err != nil {
		l.unmark()
		return err
	}
	if !announceExec() {
		l.unmark()
		exit(2) // the supervisor has died, so nothing would supervise the program
	}
	err = applyFilter(filter)
	if err != nil {
		l.unmark()
		return err
	}
	var e syscall.Errno
	for {
		_, _, e = unix.RawSyscall(unix.SYS_EXECVE, uintptr(path), uintptr(unsafe.Pointer(&argv[0])),
			uintptr(unsafe.Pointer(&envv[0])))
		if e != unix.EINTR {
			break
		}
	}
	l.unmark()
	return l.explain(p.path, e)
}

// vector appends pointers to the strings of list to v. A NUL follows each string, as in every received spec.
func vector(v []*byte, list []string) []*byte {
	for _, s := range list {
		if s == "" { // unsafe.StringData("") is unspecified
			v = append(v, new(byte))
			continue
		}
		v = append(v, unsafe.StringData(s))
	}
	return v
}

// status is global, so that announceExec allocates no memory.
var status = [1]byte{statusExec}

// announceExec informs the supervisor that execve comes next, and reports whether the supervisor still exists.
func announceExec() bool {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, statusFD, uintptr(unsafe.Pointer(&status)), 1, unix.MSG_NOSIGNAL, 0, 0)
	return e == 0
}

// recordMark is global, so that mark allocates no memory.
var recordMark = [1]byte{task.RecordMark}

// mark writes the mark to the task's record. The launcher holds the lock of the record until execve: a record with the
// mark, but without the lock, shows that the program was executed.
func (l *launcher) mark() *Error {
	if l.spec.Record == "" {
		return nil
	}
	if _, e := call(unix.SYS_PWRITE64, recordFD, uintptr(unsafe.Pointer(&recordMark)), 1, 0); e != 0 {
		return failed("mark the task's record", e)
	}
	return nil
}

// unmark removes the mark when the launcher ends without having executed the program. It punches a hole, which reads as
// zeros, because a ulimit could prevent a write.
func (l *launcher) unmark() {
	if l.spec.Record != "" {
		_, _, _ = unix.RawSyscall6(unix.SYS_FALLOCATE, recordFD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
			0, 1, 0, 0)
	}
}

// blockingStdio clears O_NONBLOCK in the standard streams: hardly any program expects EAGAIN from its stdout.
func blockingStdio() {
	for fd := range uintptr(3) {
		flags, _, e := unix.RawSyscall(unix.SYS_FCNTL, fd, unix.F_GETFL, 0)
		if e == 0 && flags&unix.O_NONBLOCK != 0 {
			_, _, _ = unix.RawSyscall(unix.SYS_FCNTL, fd, unix.F_SETFL, flags&^unix.O_NONBLOCK)
		}
	}
}

// closeOnExec marks every descriptor except 0, 1 and 2 close-on-exec, including those that the supervisor inherited.
func closeOnExec() *Error {
	const first = 3
	_, _, e := unix.RawSyscall(unix.SYS_CLOSE_RANGE, first, uintptr(^uint32(0)), unix.CLOSE_RANGE_CLOEXEC)
	switch e {
	case 0:
		return nil
	case unix.ENOSYS, unix.EINVAL, unix.EPERM: // before Linux 5.11, or an older sandbox
	default:
		return failed("close files on exec", e)
	}
	dir, e := open(unix.AT_FDCWD, "/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY)
	if e != 0 {
		return failed("list open files", e)
	}
	defer closeFD(dir)
	names, e := list(dir)
	if e != 0 {
		return failed("list open files", e)
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd >= first {
			_, _, _ = unix.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
		}
	}
	return nil
}

// sigaction is struct kernel_sigaction, of which only the handler matters here.
type sigaction struct {
	handler uintptr
	rest    [3]uint64
}

const (
	sigDefault = 0
	sigIgnore  = 1
	sigsetSize = 8
)

// defaultSignals unblocks all signals and restores the default action of ignored ones. execve itself resets only
// handlers: a supervisor that ignores SIGPIPE would break `yes | head` in its tasks.
func defaultSignals() {
	for sig := uintptr(1); sig <= 64; sig++ {
		var sa sigaction
		_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&sa)), sigsetSize, 0, 0)
		if e == 0 && sa.handler == sigIgnore {
			sa = sigaction{handler: sigDefault}
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&sa)), 0, sigsetSize, 0, 0)
		}
	}
	var none uint64
	_, _ = call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&none)), 0, sigsetSize)
}
