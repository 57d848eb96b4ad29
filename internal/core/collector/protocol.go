// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package collector is the process that moves the output of tasks to their log files.
// It is separate from the supervisor, since a file system that does not answer blocks
// every thread that touches it, and a process with such a thread can't even be killed.
// So the supervisor touches no file of an allocation.
//
// One collector serves all tasks of a supervisor, and outlives it, so that the FIFOs of
// tasks stay open. A task whose files hang has a thread of its own for that long, and
// delays no other task.
//
// The package has two halves: Main is the process, Client the supervisor's side.
package collector

import (
	"os"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Spec is a task whose output is collected.
type Spec struct {
	ID     string      `json:"id"`
	Task   string      `json:"task"` // its name, which that of its files begins with
	Output task.Output `json:"output"`

	// Identity is that of a task that runs. Its FIFOs are found at its process if their
	// names are gone.
	Identity task.Identity `json:"identity,omitzero"`

	// UID and GID are the task's, for the FIFOs of CollectorNomad; -1 is this process's own.
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// SpecOf returns what a collector needs to know of a task.
func SpecOf(st *task.State) Spec {
	spec := Spec{ID: st.ID, Task: st.Task, Output: st.Output, Identity: st.Identity, UID: -1, GID: -1}
	if u := st.Command.User; u != nil && os.Geteuid() == 0 {
		spec.UID, spec.GID = int(u.UID), int(u.GID)
	}
	return spec
}

// request and reply are the bodies of wire.Messages.
type request struct {
	Op   op     `json:"op"`
	ID   string `json:"id,omitempty"`
	Spec *Spec  `json:"spec,omitempty"` // take
	New  bool   `json:"new,omitempty"`  // take: of a task that is being started, which fails with it
	To   string `json:"to,omitempty"`   // rename
}

type op string

const (
	opHello  op = "hello"  // -> Build, Tasks, Hangs
	opTake   op = "take"   // Spec; with New -> From, and for CollectorNomad the task's ends of the FIFOs
	opGo     op = "go"     // begin to move: every other collector has stopped
	opDrain  op = "drain"  // ID -> when all that was written is in files, or Waits
	opClose  op = "close"  // ID: drain, and close; what hangs goes on in the background
	opRename op = "rename" // ID, To
	opEnd    op = "end"    // end when no output is collected any more
)

type reply struct {
	Error string        `json:"error,omitempty"`
	Build string        `json:"build,omitempty"`
	Tasks []string      `json:"tasks,omitempty"` // ids
	From  task.LogPlace `json:"from,omitzero"`   // where a new task's stderr begins
	Waits bool          `json:"waits,omitempty"` // a file system does not answer, or has no space
	Event *Event        `json:"event,omitempty"`
	Stall *stall        `json:"stall,omitempty"`
	Hangs []string      `json:"hangs,omitempty"` // ids: at these it hangs now
}

// Event is a sentence for the user of a task.
type Event struct {
	ID      string `json:"id"`
	Message string `json:"message"`
}

// stall reports that a thread of the collector begins or ceases to hang at the output of
// a task. It may hold the lock of the task's FIFO, which open(2) and close(2) take too, so
// that no other process should touch the FIFO.
type stall struct {
	ID string `json:"id"`
	On bool   `json:"on"`
}

// Streams are a task's output streams: the names of its FIFOs, and of its log files.
var Streams = [2]string{"stdout", "stderr"}
