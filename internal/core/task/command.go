// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package task defines the types that the layers of a driver exchange: the command to run
// (Command), the process that runs it (Identity), its exit (Exit), and its record on disk
// (State). It has few imports, since the supervisor and the launcher are built from it.
package task

import (
	"fmt"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// Command describes one process. A driver plugin makes it from the task's configuration; the
// launcher (package launch) applies it to itself and executes the program. All paths are
// resolved by the launcher only, since a file system may hang.
type Command struct {
	// Path is the program as the user wrote it. A relative path is searched for first in Lookup, and then in Dir if it
	// contains a slash, or in the PATH of Env if it does not.
	Path string `json:"path"`

	// Args is the argument vector without argv[0], which is Path.
	Args []string `json:"args,omitempty"`

	// Env is the whole environment, as NAME=value.
	Env []string `json:"env"`

	// Dir is the absolute path of the working directory.
	Dir string `json:"dir"`

	// Lookup lists absolute directories: for a Nomad task, its local/ and its task directory. A regular file that Path
	// names in one of them is made executable if necessary (artifacts and templates often are not), as raw_exec does.
	// Files elsewhere are never changed.
	Lookup []string `json:"lookup,omitempty"`

	// User is the account that runs the program; nil means the supervisor's own.
	User *User `json:"user,omitempty"`

	// OpenStdin gives the program a stdin that never ends, instead of /dev/null.
	OpenStdin bool `json:"open_stdin,omitempty"`

	// Umask is the process's umask; nil means 0022.
	Umask *uint32 `json:"umask,omitempty"`

	// Nice is the scheduling priority, -20 to 19 (setpriority(2)).
	Nice int `json:"nice,omitempty"`

	// OOMScoreAdj is written to /proc/self/oom_score_adj, -1000 to 1000. It is always written,
	// since a task must not inherit the supervisor's value.
	OOMScoreAdj int `json:"oom_score_adj,omitempty"`

	// Rlimits are set before the process changes to User, because only root may raise hard limits.
	Rlimits []Rlimit `json:"rlimits,omitempty"`

	// NetworkNamespace is the path of a network namespace to enter (setns(2), CLONE_NEWNET), empty for the host's.
	NetworkNamespace string `json:"network_namespace,omitempty"`

	// TaskDir is the absolute path of the task's directory, or empty if the command has none. Missing mount points in
	// this directory are created.
	TaskDir string `json:"task_dir,omitempty"`

	// NoNewPrivileges prevents privilege gains through set-user-ID programs (no_new_privs of prctl(2)).
	NoNewPrivileges bool `json:"no_new_privileges,omitempty"`

	Capabilities Capabilities `json:"capabilities,omitzero"`

	// Unveil confines the program to some paths; nil means that it may use whatever its user may.
	Unveil *Unveil `json:"unveil,omitempty"`

	// Seccomp is a filter of system calls (seccomp(2)): its instructions (struct sock_filter) in base64, or empty for no
	// filter. A program with a filter also has no_new_privs.
	Seccomp string `json:"seccomp,omitempty"`

	// Isolation selects what the program does not share with the host.
	Isolation Isolation `json:"isolation,omitzero"`

	// Devices and Mounts are host files that the task may use. OwnMounts reports whether they need a mount namespace.
	Devices []Device `json:"devices,omitempty"`
	Mounts  []Mount  `json:"mounts,omitempty"`
}

// Device is a device node of the host, or a directory of device nodes, that appears at TaskPath in the task. If it is
// missing, the program is not started. A TaskPath below /dev is a link to HostPath, so a running task sees a node that
// is created again. Any other TaskPath must exist. Both paths are absolute.
type Device struct {
	HostPath string `json:"host_path"`
	TaskPath string `json:"task_path"`
}

// Mount is a file or directory of the host that is bind-mounted at Target in the task (mount(2), MS_BIND without
// MS_REC: mounts below Source are not included). A missing Target is created: on the host if it is in TaskDir, and
// otherwise only in the task. Source and Target are absolute.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`

	// Volume is set if the job's author has chosen Target; links in Target are then not followed. A set-user-ID bit has no
	// effect in a volume, and device nodes cannot be opened in a volume that is not below /dev.
	Volume bool `json:"volume,omitempty"`

	// HostToTask makes mounts below Source, present and future, appear in the task too.
	HostToTask bool `json:"host_to_task,omitempty"`
}

// OwnMounts reports whether the process needs its own mount namespace: it has mounts, devices at
// paths other than the host's, or some isolation.
func (c *Command) OwnMounts() bool {
	for _, d := range c.Devices {
		if path.Clean(d.TaskPath) != path.Clean(d.HostPath) {
			return true
		}
	}
	return len(c.Mounts) > 0 || c.Isolation.mounts()
}

// MaxSeccomp is the kernel's maximum number of instructions of Seccomp (BPF_MAXINSNS).
const MaxSeccomp = 4096

// User is a resolved identity: no further name service lookup is needed.
type User struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Rlimit is one setrlimit(2) limit. Soft and Hard may be Unlimited.
type Rlimit struct {
	Resource int    `json:"resource"`
	Soft     uint64 `json:"soft"`
	Hard     uint64 `json:"hard"`
}

// RlimitNames are the names of limits.conf(5), by resource number.
var RlimitNames = [...]string{
	unix.RLIMIT_CPU: "cpu", unix.RLIMIT_FSIZE: "fsize", unix.RLIMIT_DATA: "data",
	unix.RLIMIT_STACK: "stack", unix.RLIMIT_CORE: "core", unix.RLIMIT_RSS: "rss",
	unix.RLIMIT_NPROC: "nproc", unix.RLIMIT_NOFILE: "nofile", unix.RLIMIT_MEMLOCK: "memlock",
	unix.RLIMIT_AS: "as", unix.RLIMIT_LOCKS: "locks", unix.RLIMIT_SIGPENDING: "sigpending",
	unix.RLIMIT_MSGQUEUE: "msgqueue", unix.RLIMIT_NICE: "nice", unix.RLIMIT_RTPRIO: "rtprio",
	unix.RLIMIT_RTTIME: "rttime",
}

// Unlimited is RLIM_INFINITY of setrlimit(2).
const Unlimited = ^uint64(0)

// KillMode selects the processes that receive the stop signal. In every mode a stopped task
// leaves no process behind.
type KillMode string

// The modes.
const (
	KillProcess KillMode = "process" // the main process alone
	KillGroup   KillMode = "group"   // the main process's process group
	KillAll     KillMode = "all"     // every process of the task's cgroup
)

// Exit describes how a process ended: it exited with Code, was terminated by Signal if that is not 0, or is Lost.
type Exit struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`

	// OOMKilled is set if the OOM killer killed a process of the task, and the task failed.
	OOMKilled bool `json:"oom_killed,omitempty"`

	// OOMKills counts the OOM kills in the task's cgroup since the cgroup was made, including those before the task's
	// start (State.OOMKills).
	OOMKills uint64 `json:"oom_kills,omitempty"`

	// Lost is set if the process is gone and its exit status is unknown. Code and Signal are then invalid, and Reason is
	// the cause. Otherwise Reason is why the driver ended the task, if it did.
	Lost   bool   `json:"lost,omitempty"`
	Reason string `json:"reason,omitempty"`

	// At is the time when the exit was detected; zero if unknown.
	At time.Time `json:"at,omitzero"`
}

// String formats the exit for logs: "code 3", "signal 9, out of memory", "lost: …".
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
