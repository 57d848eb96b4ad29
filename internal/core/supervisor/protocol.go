// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package supervisor contains the process that starts the tasks of a plugin, outlives the plugin, and records how the
// tasks ended. One supervisor serves all tasks of one plugin of one Nomad agent. Package collector moves their output.
//
// Main is the main function of the supervisor. Client is the plugin's side: it starts a supervisor, sends it requests,
// upgrades it, and replaces one that has died. Both use the protocol in this file.
package supervisor

import (
	"errors"

	"github.com/outrider-dev/outrider/internal/core/collector"
	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// protocolVersion must be increased when an older client could misread a message. Before its first request, a client
// upgrades a supervisor of another version, or replaces one that does not understand hello. The tasks keep running.
const protocolVersion = 3 // since version 3, messages are those of package wire

// request is the body of a wire.Message to the supervisor. The comment of a field names the operations that use it.
type request struct {
	Op     string        `json:"op"`
	ID     string        `json:"id,omitempty"`     // the task, or the exec session
	State  *task.State   `json:"state,omitempty"`  // launch, adopt
	Exec   *ExecSpec     `json:"exec,omitempty"`   // exec
	Signal int           `json:"signal,omitempty"` // signal
	Mode   task.KillMode `json:"mode,omitempty"`   // signal
	Build  string        `json:"build,omitempty"`  // upgrade

	// upgrade: the surroundings to take over. A supervisor whose hello contains none does not support this field.
	Surroundings *surroundings `json:"surroundings,omitempty"`
}

// The comment of an operation has the fields of its request, and after "->" the field of its reply.
const (
	opHello   = "hello"   // -> Hello
	opLaunch  = "launch"  // State -> Status, whose State has the Identity; answers when the program runs
	opAdopt   = "adopt"   // State, optionally a pidfd -> Status
	opSignal  = "signal"  // ID, Signal, Mode
	opKill    = "kill"    // ID; kills all processes, and answers when none is left
	opDestroy = "destroy" // ID; kills all processes, and removes all files and cgroups
	opExec    = "exec"    // Exec, 3 fds -> answers when the program runs; its exit comes with ID Exec.Session
	opUpgrade = "upgrade" // fds of the new binary and, with Surroundings, of the namespaces; ends the connection
)

// reply is the body of a wire.Message to a client. A message that answers no request has either an Event, or an Exit
// and the ID of the task or exec session that ended.
type reply struct {
	ID    string       `json:"id,omitempty"`
	Error *remoteError `json:"error,omitempty"`
	Hello *hello       `json:"hello,omitempty"`
	Stat  *Status      `json:"status,omitempty"`
	Exit  *task.Exit   `json:"exit,omitempty"`
	Event *Event       `json:"event,omitempty"`
}

type hello struct {
	Protocol int    `json:"protocol"`
	Build    string `json:"build"`
	PID      int    `json:"pid"`

	Surroundings *surroundings `json:"surroundings,omitempty"` // those that the supervisor was started with, or took over
}

// ExecSpec describes an additional process in a running task's cgroup, with the task's user, environment and limits.
type ExecSpec struct {
	Session string   `json:"session"` // chosen by the client, unique
	Path    string   `json:"path"`
	Args    []string `json:"args,omitempty"`
	TTY     bool     `json:"tty,omitempty"` // fd 0 becomes the controlling terminal
}

// Status is a supervisor's report on a task.
type Status struct {
	Running bool        `json:"running"`
	State   *task.State `json:"state,omitempty"`
	Exit    *task.Exit  `json:"exit,omitempty"` // set if the task has ended
}

// Event is a message for the user of a task.
type Event = collector.Event

// ErrUnknownTask is returned for an id that the supervisor does not know.
var ErrUnknownTask = errors.New("supervisor does not know this task")

// ErrEnded is returned for a process that has already ended.
var ErrEnded = errors.New("process has already ended")

// kinds maps remoteError.Kind to the errors that errors.Is still recognizes after they were sent over the socket.
var kinds = map[string]error{"unknown": ErrUnknownTask, "ended": ErrEnded, "unfit": errUnfit}

// remoteError is an error in a reply. Kind and Start restore an error that callers test for.
type remoteError struct {
	Message string        `json:"message"`
	Kind    string        `json:"kind,omitempty"`
	Start   *launch.Error `json:"start,omitempty"`
}

func toRemote(err error) *remoteError {
	if err == nil {
		return nil
	}
	r := &remoteError{Message: err.Error()}
	errors.As(err, &r.Start)
	for kind, is := range kinds {
		if errors.Is(err, is) {
			r.Kind = kind
		}
	}
	return r
}

func (r *remoteError) err() error {
	switch {
	case r == nil:
		return nil
	case kinds[r.Kind] != nil:
		return kinds[r.Kind]
	case r.Start != nil:
		return r.Start
	}
	return errors.New(r.Message)
}
