// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package launch starts one process. It has two halves:
//
//   - Start and Process, for the supervisor: they fork the launcher, send it a Spec, and report that the program
//     runs, or in one sentence why it does not.
//   - Main, the launcher itself: a role of the supervisor's own binary that applies the Spec to its own process and
//     then executes the program in place, so that the pid stays the same and nothing of the launcher remains.
//
// The supervisor executes only its own binary, and never accesses a path of the task: Go's fork stops the world of the
// forking process until the child has called execve, so a dead NFS mount would block the supervisor of all tasks. All
// calls that can hang are made by the launcher, which a SIGKILL ends.
//
// The order of the launcher's steps is in (*launcher).run; each step has its own file.
package launch

import (
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Spec describes what a launcher starts, and how.
type Spec struct {
	Command task.Command

	// TasksFiles are the `tasks` files of the cgroup v1 groups to join. (The last argument of Start is the cgroup v2
	// group, into which the launcher is cloned.)
	TasksFiles []string

	// MountNamespace is a descriptor of a running task's mount namespace, which the new process enters (setns(2),
	// CLONE_NEWNS); 0 means none. The task's launcher has created it (see Process.KeepMounts). It contains the task's
	// devices and mounts, so Command must have none. Keep the descriptor open until Start has returned.
	//
	// A path would not do, because a task can choose the target of its /proc/<pid>/ns/mnt: root would enter a namespace in
	// which the task controls every file.
	MountNamespace int

	// Task is a pidfd of the main process of a running task, to which the new process is added; 0 means none. The new
	// process enters the IPC, UTS (host name) and PID namespaces of the main process. Keep the pidfd open until Start has
	// returned.
	Task int

	// Init is a pidfd of the init of a PID namespace (StartInit), which the new process enters; 0 means none. The new
	// process does not have PID 1 there, so it gets signals like any other. Keep the pidfd open until Start has returned.
	Init int

	// NoFile is the soft limit of open files (RLIMIT_NOFILE), which is capped at the hard limit. 0 means the limit that
	// the caller of Start was started with.
	NoFile uint64

	// Record is the path of the task's record, which Start creates (task.NewRecord) and the launcher marks. It is empty
	// for a process that no later supervisor adopts.
	Record string

	// TTY makes fd 0, which must be a terminal, the controlling terminal of the new session.
	TTY bool
}

// taskFD is the launcher's descriptor of Task.
func (s *Spec) taskFD() int {
	if s.MountNamespace != 0 {
		return mountsFD + 1
	}
	return mountsFD
}

// Stage is a step of the launcher. While a step runs, the process's name is "launch:<stage>", so that ps shows where
// a launcher hangs.
type Stage string

// The stages have at most 8 characters, because a process name, with the prefix, has at most 15.
const (
	StageSetup   Stage = "setup"    // fork, hand over the spec, terminal
	StageCgroup  Stage = "cgroup"   // cgroup v1
	StageNetwork Stage = "network"  // network namespace
	StageIsolate Stage = "isolate"  // IPC and UTS (host name) namespaces
	StageDevices Stage = "devices"  // mount namespace: devices and mounts
	StageLimits  Stage = "limits"   // oom_score_adj, nice, ulimit
	StageUser    Stage = "user"     // user and groups
	StageWorkDir Stage = "work_dir" // chdir
	StageProgram Stage = "program"  // search for the program
	StageUnveil  Stage = "unveil"   // paths that the program may use
	StageExec    Stage = "exec"     // execve
)

// Error is the reason why a program was not started. Nothing remains of the start, unless the message says otherwise.
type Error struct {
	Stage   Stage         `json:"stage"`
	Message string        `json:"message"` // one sentence for the job's author
	Errno   syscall.Errno `json:"errno,omitempty"`

	// Temporary means that the same start may succeed later, as with an unplugged device.
	Temporary bool `json:"temporary,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the kernel's error, for calls such as errors.Is(err, fs.ErrNotExist). It returns syscall.ETIMEDOUT if
// the start took too long, and syscall.ECANCELED if the caller gave up.
func (e *Error) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}
