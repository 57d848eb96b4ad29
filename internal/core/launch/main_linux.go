// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"encoding/binary"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// statusFD is where a launcher finds its end of the status socket.
const statusFD = 3

// recordFD is where it finds the record of the task that it becomes. It holds the
// lock on it; the supervisor has closed its own descriptor. mountsFD is where it
// finds the mount namespace to enter, as one more process of a task. No Spec has both.
const (
	recordFD = 4
	mountsFD = 4
)

const namePrefix = "launch:"

func processName(s Stage) string { return namePrefix + string(s) }

// launcher is the state of the one launcher that the process is.
type launcher struct {
	spec  Spec
	stage Stage
}

// Inits run on the process's first thread, whose name is the process's. Everything that a
// launcher does is done to this thread, the one that execs.
func init() {
	if slices.Equal(os.Args, launcherArgs) {
		runtime.LockOSThread()
	}
}

// Main is the launcher's role: it never returns. It is called from main() before
// anything else, with what Start left in fd 3.
func Main() {
	l := &launcher{}
	l.enter(StageSetup)
	if !decodeSpec(receive(), &l.spec) {
		l.fail(&Error{Message: "launcher got a spec that it can't read"})
	}
	l.fail(l.run())
}

// run applies the spec in the order that the steps ask for, and returns only the
// reason why the program does not run.
func (l *launcher) run() *Error {
	c := &l.spec.Command
	if err := l.setup(); err != nil {
		return err
	}
	DefaultScheduling() // a cgroup of v1 takes no process with a real-time policy
	// first, so that all the rest counts for the task
	if err := l.joinCgroups(); err != nil {
		return err
	}
	l.enter(StageProgram)
	p, err := findInLookup(c) // with the right to make it executable, and before a path may lead into a volume
	if err != nil {
		return err
	}
	if err := l.isolate(); err != nil {
		return err
	}
	l.enter(StageLimits)
	// before the change of user: afterwards the file in /proc is root's until execve
	if err := setOOMScoreAdj(c.OOMScoreAdj); err != nil {
		return err
	}
	if err := setNice(c.Nice); err != nil {
		return err
	}
	setNoFile(l.spec.NoFile)
	if err := raiseLimits(c.Rlimits); err != nil {
		return err
	}
	l.enter(StageUser)
	if err := l.enterMounts(); err != nil {
		return err
	}
	if err := become(c.User); err != nil {
		return err
	}
	if err := dropInheritable(); err != nil {
		return err
	}
	// as the user, whose permissions count from here on
	l.enter(StageWorkDir)
	if err := enterDir(c); err != nil {
		return err
	}
	if p.path == "" {
		l.enter(StageProgram)
		if err := findElsewhere(c, &p); err != nil {
			return err
		}
	}
	l.enter(StageExec)
	return l.exec(p)
}

// setup needs nothing and can't hang.
func (l *launcher) setup() *Error {
	if l.spec.Command.Path == "" {
		return refuse(unix.EINVAL, "command is empty")
	}
	if l.spec.TTY {
		if _, e := call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY); e != 0 {
			return failed("make stdin the controlling terminal", e)
		}
	}
	return ownKeyring() // as root, who may have more of them
}

func (l *launcher) joinCgroups() *Error {
	if len(l.spec.TasksFiles) == 0 {
		return nil
	}
	l.enter(StageCgroup)
	for _, path := range l.spec.TasksFiles {
		// 0 is the writing thread, which alone survives execve: to move it waits
		// for no RCU grace period, as to move a process does
		if e := writeFile(path, "0"); e != 0 {
			return failed("join cgroup "+path, e)
		}
	}
	return nil
}

// enter starts a step: it is the process's name while it lasts.
func (l *launcher) enter(s Stage) {
	l.stage = s
	_, _ = call(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(cstr(processName(s))))
}

// fail reports why the program was not started, and ends the launcher.
func (l *launcher) fail(err *Error) {
	if err.Stage == "" {
		err.Stage = l.stage
	}
	write(statusFD, encodeError(err))
	exit(127)
}

// receive reads the spec. If the supervisor has died, the program is not started.
func receive() []byte {
	var head [headerSize]byte
	if !readFull(head[:]) {
		var st unix.Stat_t
		if fstat(statusFD, &st) != 0 || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			os.Stderr.WriteString("this role is for the supervisor, which starts it by itself\n")
		}
		exit(2)
	}
	b := make([]byte, binary.LittleEndian.Uint32(head[:]))
	if !readFull(b) {
		exit(2)
	}
	return b
}

func readFull(b []byte) bool {
	for len(b) > 0 {
		n, e := read(statusFD, b)
		if e != 0 || n <= 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

// refuse is the error of a step with a message of its own.
func refuse(e syscall.Errno, message string) *Error { return &Error{Message: message, Errno: e} }

// failed is the error of a step with the kernel's reason.
func failed(what string, e syscall.Errno) *Error {
	return refuse(e, "failed to "+what+": "+e.Error())
}
