// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package task holds what the layers of a driver pass to each other: what to
// run (Command), which process it became (Identity), how it ended (Exit), and
// what is on disk about it (State). It imports the standard library only, since
// the supervisor and the launcher are built from it.
package task

import (
	"fmt"
	"path"
	"time"
)

// Command is a pure description of one process. A driver plugin makes it from
// the task's configuration; the launcher (package launch) applies it to itself
// and becomes it. Nothing in it has been looked up on a file system that can
// hang: that is the launcher's work.
type Command struct {
	// Path is the program as the user wrote it. Without a slash it is looked for
	// in Lookup and then in the PATH of Env; with one it is relative to Dir.
	Path string `json:"path"`

	// Args is the argument vector without argv[0], which is Path.
	Args []string `json:"args,omitempty"`

	// Env is the whole environment, as NAME=value.
	Env []string `json:"env"`

	// Dir is the working directory, absolute.
	Dir string `json:"dir"`

	// Lookup are absolute directories in which a Path (relative or bare) is
	// looked for before PATH: of a Nomad task, its local/ and its task directory.
	// A regular file found there is made executable if it is not (artifacts and
	// templates often are not), as raw_exec does; files elsewhere are never touched.
	Lookup []string `json:"lookup,omitempty"`

	// User is the account that runs it; nil is the supervisor's own.
	User *User `json:"user,omitempty"`

	// Umask of the process; nil means 0022.
	Umask *uint32 `json:"umask,omitempty"`

	// Nice is the scheduling priority, -20 to 19 (setpriority(2)).
	Nice int `json:"nice,omitempty"`

	// OOMScoreAdj is written to /proc/self/oom_score_adj, -1000 to 1000. It is
	// always written, since the supervisor's own value is not what a task wants.
	OOMScoreAdj int `json:"oom_score_adj,omitempty"`

	// Rlimits are set before the change of user, so that root's may be raised.
	Rlimits []Rlimit `json:"rlimits,omitempty"`

	// NetworkNamespace is the path of a network namespace to enter
	// (setns(2), CLONE_NEWNET), empty for the host's.
	NetworkNamespace string `json:"network_namespace,omitempty"`

	// TaskDir is the task's directory, absolute: mount points in it are made. Empty
	// for a command that has none.
	TaskDir string `json:"task_dir,omitempty"`

	// NoNewPrivileges keeps set-user-ID programs from giving privileges
	// (no_new_privs of prctl(2)).
	NoNewPrivileges bool `json:"no_new_privileges,omitempty"`

	// Devices and Mounts are what the task has of the host besides what is at its
	// own path: see OwnMounts.
	Devices []Device `json:"devices,omitempty"`
	Mounts  []Mount  `json:"mounts,omitempty"`
}

// Device is a device node (or a directory of them) of the host that is at
// TaskPath in the task. The program is not started without it. Below /dev it is a
// link to HostPath, so that a node which is made anew there is seen by a task that
// runs; elsewhere TaskPath must exist. Both are absolute.
type Device struct {
	HostPath string `json:"host_path"`
	TaskPath string `json:"task_path"`
}

// Mount is a file or a directory of the host that is bound to Target in the task
// (mount(2), MS_BIND: without what is mounted below it). A Target that does not exist
// is made: on the host where it is in TaskDir, and elsewhere for the task alone. Both
// are absolute.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`

	// Volume is set where the author of a job has chosen Target: then no link is
	// followed to it. A set-user-ID bit has no effect in a volume, and device nodes can't
	// be opened in one that is not below /dev.
	Volume bool `json:"volume,omitempty"`

	// HostToTask: what is mounted in Source, now and later, is there too.
	HostToTask bool `json:"host_to_task,omitempty"`
}

// OwnMounts reports whether the process needs a mount namespace of its own: something
// is at another path than on the host.
func (c *Command) OwnMounts() bool {
	for _, d := range c.Devices {
		if path.Clean(d.TaskPath) != path.Clean(d.HostPath) {
			return true
		}
	}
	return len(c.Mounts) > 0
}

// User is a resolved identity: no name service is asked after this.
type User struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Rlimit is one setrlimit(2) limit. Unlimited is RLIM_INFINITY.
type Rlimit struct {
	Resource int    `json:"resource"`
	Soft     uint64 `json:"soft"`
	Hard     uint64 `json:"hard"`
}

// Unlimited is RLIM_INFINITY of setrlimit(2).
const Unlimited = ^uint64(0)

// KillMode selects the processes that get a stop signal. In every mode a stopped task
// leaves no process behind.
type KillMode string

// The modes.
const (
	KillProcess KillMode = "process" // the main process alone
	KillGroup   KillMode = "group"   // the main process's process group
	KillAll     KillMode = "all"     // every process of the task's cgroup
)

// Exit is how a process ended. Exactly one of the three is the case: it ended
// by Code, by Signal, or it is Lost.
type Exit struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`

	// OOMKilled: the kernel killed a process of the task because memory ran out,
	// and the task failed.
	OOMKilled bool `json:"oom_killed,omitempty"`

	// OOMKills counts the processes of the task's cgroup that were killed so, since
	// the cgroup was made; State.OOMKills were before the task.
	OOMKills uint64 `json:"oom_kills,omitempty"`

	// Lost: the process is gone and its exit status is unknown. Code and Signal are
	// not valid then; Reason is the cause. Otherwise Reason is why the driver has ended the task, if it has.
	Lost   bool   `json:"lost,omitempty"`
	Reason string `json:"reason,omitempty"`

	// At is when the exit was seen; zero where unknown.
	At time.Time `json:"at,omitzero"`
}

// String is the exit in a log: "code 3", "signal 9, out of memory", "lost: …".
func (e *Exit) String() string {
	switch {
	case e == nil:
		return "unknown"
	case e.Lost:
		return "lost: " + e.Reason
	}
	text := fmt.Sprintf("code %d", e.Code)
	if e.Signal != 0 {
		text = fmt.Sprintf("signal %d", e.Signal)
	}
	if e.OOMKilled {
		text += ", out of memory"
	}
	return text
}
