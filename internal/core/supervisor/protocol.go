// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package supervisor is the process that starts the tasks of a plugin, outlives the plugin,
// and records how the tasks ended. Package collector moves their output. One supervisor
// serves all tasks of one plugin of one Nomad agent.
//
// The package has two halves. Main is the process itself. Client is the plugin's side: it
// starts a supervisor, talks to it, upgrades it, and starts another one when it has died.
// Both use the protocol of this file.
package supervisor

import (
	"errors"

	"github.com/outrider-dev/outrider/internal/core/collector"
	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// protocolVersion changes when an older client could misunderstand. A client
// upgrades a supervisor of another version before it asks anything of it, or replaces one
// that does not understand its hello: its tasks go on.
const protocolVersion = 3 // 3: the messages are package wire's

// request is the body of a wire.Message to the supervisor.
type request struct {
	Op     string        `json:"op"`
	ID     string        `json:"id,omitempty"`     // the task, or the exec session
	State  *task.State   `json:"state,omitempty"`  // launch, adopt
	Exec   *ExecSpec     `json:"exec,omitempty"`   // exec
	Signal int           `json:"signal,omitempty"` // signal
	Mode   task.KillMode `json:"mode,omitempty"`   // signal
	Build  string        `json:"build,omitempty"`  // upgrade

	// of an upgrade: what the new program is to have. A supervisor that has none in its Hello does not know of it.
	Surroundings *surroundings `json:"surroundings,omitempty"`
}

const (
	opHello   = "hello"   // -> Hello
	opLaunch  = "launch"  // State -> Status, whose State has the Identity; answers when the program runs
	opAdopt   = "adopt"   // State, perhaps a pidfd -> Status
	opSignal  = "signal"  // ID, Signal, Mode
	opKill    = "kill"    // ID: the whole tree, answers when it is gone
	opDestroy = "destroy" // ID: kill, and remove all that is left
	opExec    = "exec"    // Exec, 3 fds -> answers when the program runs; its exit comes with ID Exec.Session
	opUpgrade = "upgrade" // 1 fd, the new binary, and with Surroundings their namespaces; the connection ends
)

// reply answers a request. As an event it has an Event, or the Exit of ID.
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

	Surroundings *surroundings `json:"surroundings,omitempty"` // what it was started with, or took over
}

// ExecSpec is one more process in a running task's cgroup, with its user,
// environment and limits.
type ExecSpec struct {
	Session string   `json:"session"` // chosen by the client, unique
	Path    string   `json:"path"`
	Args    []string `json:"args,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	TTY     bool     `json:"tty,omitempty"` // fd 0 is a terminal to control
}

// Status is what a supervisor knows about a task.
type Status struct {
	Running bool        `json:"running"`
	State   *task.State `json:"state,omitempty"`
	Exit    *task.Exit  `json:"exit,omitempty"` // set if it has ended
}

// Event is a message for the user of a task.
type Event = collector.Event

// ErrUnknownTask is returned for an id that the supervisor does not know.
var ErrUnknownTask = errors.New("supervisor does not know this task")

// ErrEnded is returned by Signal when the process has ended already.
var ErrEnded = errors.New("process has already ended")

// kinds are the errors that keep their identity on the socket.
var kinds = map[string]error{"unknown": ErrUnknownTask, "ended": ErrEnded, "unfit": errUnfit}

// remoteError is an error on the socket; Kind and Start keep what callers test for.
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
