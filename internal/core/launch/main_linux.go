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

// statusFD is the launcher's end of the status socket.
const statusFD = 3

// recordFD is a descriptor of the task's record. Only the launcher holds the record's lock, since the supervisor has
// closed its descriptor. mountsFD is a descriptor of Spec.MountNamespace. No Spec has both, so they share a number. The
// descriptor of Spec.Task is the next one: see taskFD.
const (
	recordFD = 4
	mountsFD = 4
)

const namePrefix = "launch:"

func processName(s Stage) string { return namePrefix + string(s) }

// launcher is the state of a launcher process.
type launcher struct {
	spec  Spec
	stage Stage
}

// init keeps a launcher on the main thread, on which Go runs init functions. The name of this thread is the process's
// name. All settings of a launcher are made for this thread, which also calls execve.
func init() {
	if slices.Equal(os.Args, launcherArgs) {
		runtime.LockOSThread()
	}
}

// Main runs the launcher, and never returns. main must call it before anything else, because it uses the descriptors
// that Start has passed on.
func Main() {
	l := &launcher{}
	l.enter(StageSetup)
	if !decodeSpec(receive(), &l.spec) {
		l.fail(&Error{Message: "launcher received an invalid spec"})
	}
	l.fail(l.run())
}

// run performs the launcher's steps, in the order that they require, and executes the program. It returns only if that
// fails, with the reason.
func (l *launcher) run() *Error {
	c := &l.spec.Command
	if err := l.setup(); err != nil {
		return err
	}
	DefaultScheduling() // before joinCgroups: a v1 cgroup accepts no process with a real-time policy
	// as early as possible, so that everything else is charged to the task
	if err := l.joinCgroups(); err != nil {
		return err
	}
	l.enter(StageProgram)
	// while root can make the program executable, and before volumes are mounted, whose files must not change
	p, err := findInLookup(c)
	if err != nil {
		return err
	}
	if err := l.isolate(); err != nil {
		return err
	}
	l.enter(StageLimits)
	// before the change of user: afterwards the file in /proc belongs to root until execve
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
	if err := dropBounding(c.Capabilities); err != nil {
		return err
	}
	if err := keepCapabilities(c.Capabilities); err != nil {
		return err
	}
	if err := become(c.User); err != nil {
		return err
	}
	if err := setCapabilities(c.Capabilities); err != nil {
		return err
	}
	// from here on with the user's permissions
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
	ruleset, err := l.unveil()
	if err != nil {
		return err
	}
	l.enter(StageExec)
	return l.exec(p, ruleset)
}

// setup performs the settings that depend on no other step. It can't hang.
func (l *launcher) setup() *Error {
	if l.spec.Command.Path == "" {
		return refuse(unix.EINVAL, "command is empty")
	}
	if l.spec.TTY {
		if _, e := call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY); e != 0 {
			return failed("make stdin the controlling terminal", e)
		}
	}
	return ownKeyring() // while still root, whose quota of keyrings is larger
}

func (l *launcher) joinCgroups() *Error {
	if len(l.spec.TasksFiles) == 0 {
		return nil
	}
	l.enter(StageCgroup)
	for _, path := range l.spec.TasksFiles {
		// 0 is the writing thread, the only one that survives execve. Unlike moving a process, moving a thread does not
		// wait for an RCU grace period.
		if e := writeFile(path, "0"); e != 0 {
			return failed("join cgroup "+path, e)
		}
	}
	return nil
}

// enter starts a step, and sets the process's name accordingly.
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

// receive reads the spec. If the supervisor has died, receive ends the launcher.
func receive() []byte {
	var st unix.Stat_t
	// if a user has started the launcher, this is no socket, and perhaps a file that the Go runtime has opened (cpu.max)
	if fstat(statusFD, &st) != 0 || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		os.Stderr.WriteString("this program is internal: only the supervisor starts it\n")
		exit(2)
	}
	var head [headerSize]byte
	if !readFull(head[:]) {
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

// refuse returns a step's error with exactly this message.
func refuse(e syscall.Errno, message string) *Error { return &Error{Message: message, Errno: e} }

// failed returns a step's error with the kernel's reason.
func failed(what string, e syscall.Errno) *Error {
	return refuse(e, "failed to "+what+": "+e.Error())
}
