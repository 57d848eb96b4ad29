// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package launch is one process start. It has two halves:
//
//   - Start and Process, for the supervisor: fork the launcher, hand it a Spec,
//     and learn that the program runs, or in one sentence why it does not.
//   - Main, the launcher itself: a role of the supervisor's own binary that
//     applies the Spec to itself and then execs the program in its own place, so
//     that the pid stays and nothing remains of the launcher.
//
// The supervisor never touches a path of the task: Go's fork stops the world of
// the forking process until the child has exec'ed, and a dead NFS mount would
// stop every task's supervisor. It executes nothing but its own binary; whatever
// can hang, hangs in the launcher, which a SIGKILL ends.
//
// The order in which the launcher works is in (*launcher).run; each step has a
// file of its own.
package launch

import (
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Spec says what a launcher is to start, and how.
type Spec struct {
	Command task.Command

	// TasksFiles are `tasks` files of cgroup v1 groups to join. (A cgroup v2 group
	// is joined by being cloned into it: the last argument of Start.)
	TasksFiles []string

	// MountNamespace is a descriptor of the mount namespace to enter (setns(2),
	// CLONE_NEWNS), 0 for none. A launcher has made it for a running task (see
	// Process.KeepMounts), and this process is one more in it. It has the task's
	// devices and mounts, so that Command must have none. The caller keeps it open
	// until Start has returned.
	//
	// It is not a path, because a task chooses what its /proc/<pid>/ns/mnt leads to:
	// root would enter a namespace in which every file belongs to the task.
	MountNamespace int

	// NoFile is the soft limit of open files, RLIMIT_NOFILE, up to the hard one. 0 is the one that the caller of Start was
	// started with.
	NoFile uint64

	// Record is the path of the task's record, which Start makes (task.NewRecord) and
	// the launcher marks. Empty for a process that is never adopted.
	Record string

	// TTY says that fd 0 is a terminal, which becomes the session's controlling one.
	TTY bool
}

// Stage is a step of the launcher. While a step runs, it is also the process's
// name, "launch:<stage>", so that ps shows where a launcher hangs.
type Stage string

// At most 8 characters: a process name has 15.
const (
	StageSetup   Stage = "setup"    // fork, hand over the spec, terminal
	StageCgroup  Stage = "cgroup"   // cgroup v1
	StageNetwork Stage = "network"  // network namespace
	StageDevices Stage = "devices"  // mount namespace: devices and mounts
	StageLimits  Stage = "limits"   // oom_score_adj, nice, ulimit
	StageUser    Stage = "user"     // user and groups
	StageWorkDir Stage = "work_dir" // chdir
	StageProgram Stage = "program"  // look for the program
	StageExec    Stage = "exec"     // execve
)

// Error says why a program was not started. After it nothing of the start is
// left, unless the message says so.
type Error struct {
	Stage   Stage         `json:"stage"`
	Message string        `json:"message"` // one sentence for the job's author
	Errno   syscall.Errno `json:"errno,omitempty"`

	// Temporary means that the same start may succeed later, as with an unplugged device.
	Temporary bool `json:"temporary,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Unwrap makes errors.Is(err, fs.ErrNotExist) and the like work. A start that
// took too long is syscall.ETIMEDOUT, one whose caller gave up syscall.ECANCELED.
func (e *Error) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}
