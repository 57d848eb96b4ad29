// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package collector implements the process that moves the output of tasks to their log files. This process is separate
// from the supervisor, because a hanging file system blocks every thread that accesses it, and a process with a blocked
// thread cannot even be killed. The supervisor itself never accesses files of an allocation.
//
// One collector serves all tasks of a supervisor. It outlives the supervisor, so the FIFOs of tasks stay open. If the
// files of one task hang, they block one thread of the collector, and other tasks are not delayed.
//
// Main is the collector process, and Client is the supervisor's side.
package collector

import (
	"os"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Spec describes a task whose output is collected.
type Spec struct {
	ID     string      `json:"id"`
	Task   string      `json:"task"` // the task's name, and the first part of the names of its log files
	Output task.Output `json:"output"`

	// Identity is the process of a running task. If the task's FIFOs were removed, the collector opens them through the
	// descriptors of this process.
	Identity task.Identity `json:"identity,omitzero"`

	// UID and GID are the ids of the task's user, who gets the FIFOs of CollectorNomad; -1 means this process's ids.
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// SpecOf returns the Spec for a task.
func SpecOf(st *task.State) Spec {
	spec := Spec{ID: st.ID, Task: st.Task, Output: st.Output, Identity: st.Identity, UID: -1, GID: -1}
	if u := st.Command.User; u != nil && os.Geteuid() == 0 {
		spec.UID, spec.GID = int(u.UID), int(u.GID)
	}
	return spec
}

// request and reply are the bodies of wire.Messages. op lists which fields each kind of request and its reply use.
type request struct {
	Op   op     `json:"op"`
	ID   string `json:"id,omitempty"`
	Spec *Spec  `json:"spec,omitempty"` // for opTake
	New  bool   `json:"new,omitempty"`  // for opTake: the task is being started, and the start fails on an error
	To   string `json:"to,omitempty"`   // for opRename: the new id
}

type op string

const (
	opHello  op = "hello"  // no field -> Build, Tasks, Hangs
	opTake   op = "take"   // Spec, New -> with New: From, and for CollectorNomad the task's ends of the FIFOs
	opGo     op = "go"     // begin to move output: all other collectors are dead or blocked
	opDrain  op = "drain"  // ID -> a reply when all output is in the files, or Waits
	opClose  op = "close"  // ID: drain and close; blocked work continues in the background
	opRename op = "rename" // ID, To
	opEnd    op = "end"    // exit when all output has been collected
)

type reply struct {
	Error string        `json:"error,omitempty"`
	Build string        `json:"build,omitempty"`
	Tasks []string      `json:"tasks,omitempty"` // the ids of all tasks that the collector has
	From  task.LogPlace `json:"from,omitzero"`   // the place in the log files where a new task's stderr begins
	Waits bool          `json:"waits,omitempty"` // not done yet: a file system hangs or is full
	Event *Event        `json:"event,omitempty"`
	Stall *stall        `json:"stall,omitempty"`
	Hangs []string      `json:"hangs,omitempty"` // ids of tasks whose output is blocked now
}

// Event is a message for the user of a task.
type Event struct {
	ID      string `json:"id"`
	Message string `json:"message"`
}

// stall reports whether the output of a task blocks a thread of the collector. While it does, no other process should
// access the task's FIFO: the thread may hold the FIFO's lock, which open(2) and close(2) need too.
type stall struct {
	ID string `json:"id"`
	On bool   `json:"on"`
}

// Streams are the names of a task's output streams, used for its FIFOs and its log files.
var Streams = [2]string{"stdout", "stderr"}
