// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package protocol is what a shim and its client say to each other: HTTP/2 over the shim's
// standard input and output. A call is a POST of a Request to Path and an operation's name, and
// is answered by a Reply. The streams (OpPut, OpLogs, OpExec) are at the operations themselves.
//
// A client talks to the shim of its own build, so that this has no versions. What shims of
// several builds share is on the disk (package shim).
package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Banner is the first output of a shim. A client skips what comes before it, such as output of a shell's profile.
const Banner = "outrider-shim serves\n"

// Path is what the path of a call begins with.
const Path = "/v1/"

// The operations, each a method of endpoint.Endpoint.
const (
	OpProbe   = "probe"
	OpList    = "list"
	OpGet     = "get"
	OpCreate  = "create"
	OpTake    = "take"
	OpPrepare = "prepare"
	OpPut     = "put" // the Ref is in the query, as name, epoch and start; the body is the tar stream
	OpStart   = "start"
	OpRenew   = "renew"
	OpRelease = "release"
	OpSignal  = "signal"
	OpStop    = "stop"
	OpRemove  = "remove"
	OpWatch   = "watch"
	OpLogs    = "logs" // answered by frames, of type FrameOutput
	OpStats   = "stats"
	OpExec    = "exec" // both bodies are frames; the Request is in the first one
)

// MaxBody is how long a Request or Reply may be, in bytes. Linux takes 6 MiB of arguments and
// environment (execve(2)); a list has 4096 records.
const MaxBody = 16 << 20

// MaxReply is how long a Reply may be that is no list.
const MaxReply = 256 << 10

// ConnectionBuffer is how many bytes of all streams may wait to be read. The limit of each stream is what bounds them:
// streams that nobody reads, such as the input of commands, must not use up what other calls need.
const ConnectionBuffer = 1 << 30

// Request has what its operation needs.
type Request struct {
	Ref     endpoint.Ref     `json:"ref"`
	Record  *endpoint.Record `json:"record,omitempty"` // create
	Owner   *endpoint.Owner  `json:"owner,omitempty"`  // take
	Lease   time.Duration    `json:"lease,omitempty"`  // create, take, renew
	Spec    *endpoint.Spec   `json:"spec,omitempty"`   // prepare, start
	Mutable endpoint.Mutable `json:"mutable,omitzero"` // renew, release
	Signal  string           `json:"signal,omitempty"` // signal, stop
	Grace   time.Duration    `json:"grace,omitempty"`  // stop
	Reason  string           `json:"reason,omitempty"` // stop, release
	Stream  string           `json:"stream,omitempty"` // logs
	From    endpoint.Place   `json:"from,omitzero"`    // logs
	Skip    int64            `json:"skip,omitempty"`   // logs
	Exec    *Exec            `json:"exec,omitempty"`   // exec
}

// Exec is a command. A stream that is not wanted is the null device.
type Exec struct {
	Command []string `json:"command"`
	TTY     bool     `json:"tty,omitempty"`
	Stdin   bool     `json:"stdin,omitempty"`
	Stdout  bool     `json:"stdout,omitempty"`
	Stderr  bool     `json:"stderr,omitempty"`
	Same    bool     `json:"same,omitempty"` // stderr is stdout
}

// Reply has what its operation returns.
type Reply struct {
	Record  *endpoint.Record `json:"record,omitempty"`
	Records Records          `json:"records,omitempty"`
	Facts   *endpoint.Facts  `json:"facts,omitempty"`
	Usage   *endpoint.Usage  `json:"usage,omitempty"`
	Error   *Error           `json:"error,omitempty"`
}

// MaxRecords is how many a list has at most.
const MaxRecords = 8192

// Records is a list. The other side is not trusted to send a short one: what takes two bytes on the wire, such as {},
// takes hundreds in memory.
type Records []*endpoint.Record

// UnmarshalJSON is part of json.Unmarshaler.
func (r *Records) UnmarshalJSON(b []byte) error {
	*r = Records{}
	d := json.NewDecoder(bytes.NewReader(b))
	if first, err := d.Token(); err != nil || first != json.Delim('[') {
		return errors.Join(errors.New("it is no list of records"), err)
	}
	for d.More() {
		var one *endpoint.Record
		switch err := d.Decode(&one); {
		case err != nil:
			return err
		case one == nil:
			return errors.New("there is no record where one is to be")
		case len(*r) == MaxRecords:
			return fmt.Errorf("there are more than %d records", MaxRecords)
		}
		*r = append(*r, one)
	}
	return nil
}

// Error is an error on the wire. Kind and Start keep what callers test for.
type Error struct {
	Message string        `json:"message"`
	Kind    string        `json:"kind,omitempty"`
	Start   *launch.Error `json:"start,omitempty"`
}

var kinds = map[string]error{
	"exists": endpoint.ErrExists, "gone": endpoint.ErrGone, "epoch": endpoint.ErrEpoch,
	"unreachable": endpoint.ErrUnreachable, "unprepared": endpoint.ErrUnprepared,
}

// maxMessage is how many characters of a message are kept: it gets into events and attributes.
const maxMessage = 1000

// ToError is the form of an error on the wire, nil for nil.
func ToError(err error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Message: plain.Line(err.Error(), maxMessage)}
	if start := (*launch.Error)(nil); errors.As(err, &start) {
		e.Start = short(start)
	}
	for kind, is := range kinds {
		if errors.Is(err, is) {
			e.Kind = kind
		}
	}
	return e
}

// Err is the error with its identity.
func (e *Error) Err() error {
	if e == nil {
		return nil
	}
	message := plain.Line(e.Message, maxMessage) // whatever the other side is
	switch {
	case kinds[e.Kind] != nil:
		return &kindError{message, kinds[e.Kind]}
	case e.Start != nil:
		return short(e.Start)
	}
	return errors.New(message)
}

func short(e *launch.Error) *launch.Error {
	s := *e
	s.Stage, s.Message = launch.Stage(plain.Line(string(e.Stage), maxMessage)), plain.Line(e.Message, maxMessage)
	return &s
}

type kindError struct {
	message string
	kind    error
}

func (e *kindError) Error() string { return e.message }
func (e *kindError) Unwrap() error { return e.kind }
