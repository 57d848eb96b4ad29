// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package endpoint defines what a remote host or container engine must offer: objects, each of
// which runs one task, and a record of each object that changes only by compare-and-set. Packages
// sshhost and docker implement it; package engine decides with it.
//
// At any time one start of one allocation's task owns an object. A new owner raises the object's
// epoch. Every call that changes an object names the epoch that its caller knows, and fails with
// ErrEpoch if the object has another one by then (Record.Is). So a node that comes back changes
// nothing that another node owns.
package endpoint

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Endpoint is a host or engine. Its methods may be called concurrently, and each ends when its
// context does. ErrUnreachable means that the call may or may not have had its effect; any call
// may be repeated then.
type Endpoint interface {
	// Probe looks at the endpoint. It connects if there is no connection.
	Probe(ctx context.Context) (*Facts, error)

	// List returns the records of all objects that this plugin has made there, for any cluster.
	List(ctx context.Context) ([]*Record, error)

	// Get returns the record of one object, or ErrGone.
	Get(ctx context.Context, name string) (*Record, error)

	// Create makes an object for r.Owner, with epoch 1 and in state Starting. Nothing runs yet.
	// It returns ErrExists if the name is taken. Of two concurrent calls one succeeds.
	Create(ctx context.Context, r *Record) error

	// Take makes o the owner if the object is still as ref has it, and returns the record with
	// the next epoch. A Released object becomes Running; any other state stays.
	Take(ctx context.Context, ref Ref, o Owner) (*Record, error)

	// Prepare makes what Put and Start need. An engine pulls the image, which may take long and
	// is reported to progress, and creates the container. What an earlier call made is replaced,
	// with its files, unless the program runs or ran already. To start a task, call Prepare, Put
	// and Start; after an error of any of them, repeat all three.
	Prepare(ctx context.Context, ref Ref, s *Spec, progress func(string)) error

	// Put unpacks a tar stream into the object's directories: names begin with local/,
	// secrets/ or data/. It replaces files, and removes none. It may be called again while
	// the object runs.
	Put(ctx context.Context, ref Ref, files io.Reader) error

	// Start runs the program of an object that was prepared with the same s, and returns when it
	// runs. A program is started at most once: if it runs or ran already, Start returns the
	// record. After an error other than ErrUnreachable nothing runs, and the object can be
	// removed. ErrUnprepared means that Prepare has to be called (again), since without it a
	// second start can't be ruled out.
	Start(ctx context.Context, ref Ref, s *Spec) (*Record, error)

	// Renew extends the owner's lease by the duration that the endpoint was made with, and stores
	// the fields that are set in m. Create and Take begin a lease.
	Renew(ctx context.Context, ref Ref, m Mutable) error

	// Release gives the object up, and stores m as Renew does. The program runs on, in state
	// Released. The object may have another epoch then. It is an error if the program has ended
	// before: its owner tells of that.
	Release(ctx context.Context, ref Ref, m Mutable, reason string) error

	// Signal sends a signal to the main process, by its name in signal(7).
	Signal(ctx context.Context, ref Ref, signal string) error

	// Stop sends the signal, kills what is left after the grace, and returns when nothing of
	// the object runs: it is then in state Exited. It is no error if the object has ended already.
	Stop(ctx context.Context, ref Ref, signal string, grace time.Duration, reason string) (*Record, error)

	// Remove removes an object with all its files, in any state but Running and Released. It is
	// no error if there is no such object. A Damaged object is named with epoch 0, and what still
	// runs of it is killed.
	Remove(ctx context.Context, ref Ref) error

	// Watch returns the record when the object is in state Exited or no longer as ref has it
	// (which is not ErrEpoch here), and ErrGone when there is no such object.
	Watch(ctx context.Context, ref Ref) (*Record, error)

	// Logs returns a reader of a stream, "stdout" or "stderr", which begins at from and leaves
	// out the next skip bytes. It waits for output while the object runs, and ends with io.EOF
	// when the object has ended and all is read. The zero Place is the beginning. The caller
	// closes the reader. The two streams are read at the same time: a reader whose Next is not called
	// may hold up the other one, until it is closed.
	Logs(ctx context.Context, name, stream string, from Place, skip int64) (LogReader, error)

	// Stats returns a sample of the object's usage, or ErrGone if it does not run.
	Stats(ctx context.Context, name string) (*Usage, error)

	// Exec runs a command in the object, and returns how it ended when all of its output is
	// written. The command is killed when ctx ends.
	Exec(ctx context.Context, ref Ref, o *ExecOptions) (*task.Exit, error)

	// Close ends the connection. Objects run on.
	Close() error
}

// The errors that callers test for with errors.Is.
var (
	ErrExists      = errors.New("there is an object of this name already")
	ErrGone        = errors.New("there is no such object")
	ErrEpoch       = errors.New("another owner has taken the object over")
	ErrUnreachable = errors.New("the endpoint can't be reached")
	ErrUnprepared  = errors.New("the object is not prepared for a start")
	ErrTemporary   = errors.New("a later try may succeed") // such as with a registry that is away
)

// LogReader reads a stream of output.
type LogReader interface {
	// Next waits for the next bytes. Their slice is valid until the next call. It returns io.EOF
	// at the end.
	Next() (Chunk, error)
	Close() error
}

// Chunk is a piece of a stream.
type Chunk struct {
	Data []byte // may be empty: the place alone has moved
	End  Place  // behind Data
	Gap  bool   // the endpoint removed bytes before these that were never read
}

// ExecOptions is a command that runs in an object. Streams may be nil; Stdout and Stderr may be
// the same, then only one goroutine writes at a time. Each is closed at its end.
type ExecOptions struct {
	Command []string
	TTY     bool // the command has a terminal, and its output is all of Stdout
	Stdin   io.ReadCloser
	Stdout  io.WriteCloser
	Stderr  io.WriteCloser
	Resize  <-chan WindowSize // of the terminal; nil if it has no size
}

// WindowSize is that of a terminal, in characters.
type WindowSize struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// Facts describe an endpoint, for a person and for the scheduler.
type Facts struct {
	Kind    string // "ssh", "docker", "podman"
	Arch    string // as GOARCH: "amd64", "arm64"
	Version string // of the shim's host kernel, or of the engine
	CPUs    int
	Memory  int64             // bytes
	Limits  string            // why limits of resources can't be enforced there, empty where they are
	Address string            // where other machines reach its ports
	More    map[string]string // other attributes, by name
}

// Archs are the GOARCH of the machine names of uname(2).
var Archs = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}
