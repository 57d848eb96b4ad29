// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package engine makes, limits, snapshots, moves and removes datasets. A Backend does so
// on one kind of file system; Engine adds what is the same for all of them: a lock for
// each dataset, the trash, and the snapshots of a schedule.
//
// Below the root of a class there are:
//
//	<namespace>/<volume id>     volumes
//	.slots/<slot>.<lease>       scratch, one dataset for each reservation
//	.trash/<name>.<time>        what was deleted and can be restored
//	.received/<volume id>       what another node has sent, until it becomes a volume (see Adopt)
//	.new/<name>                 what is being received or copied; anything here without a lock is left over
//
// Nothing outside of the root is changed or read.
package engine

import (
	"context"
	"errors"
	"io"
	"maps"
	"time"
)

// Backend is one file system, below one root. A name is a dataset's place below the root,
// one or two components joined by a slash. Callers hold the dataset's lock (Engine.Lock)
// for everything that changes it; other datasets may be changed at the same time, also by
// other processes. A method that was killed at any point can be called again.
//
// Errors wrap one of those below where one fits, and are one sentence for a person.
type Backend interface {
	// Check returns why datasets can't be made or used now: a pool that is not imported,
	// a program that is missing, quotas that are off, a root that is read-only.
	Check(ctx context.Context) error

	// Space is that of the file system below the root.
	Space(ctx context.Context) (Space, error)

	// List returns every dataset below the root that this package made, in order of name.
	List(ctx context.Context) ([]Dataset, error)

	// Get returns one dataset. ErrNotFound, or ErrForeign if this package did not make it.
	Get(ctx context.Context, name string) (Dataset, error)

	// Create makes an empty dataset with its limits and tags, and mounts it. It is
	// there whole or not at all. ErrExists, ErrForeign.
	Create(ctx context.Context, name string, s Spec) (path string, err error)

	// Mount makes sure that a dataset is mounted where its files are used, which is dir
	// where the file system has mount points, and returns that path when it has verified
	// that the path leads to this dataset. It may be called again.
	Mount(ctx context.Context, name, dir string) (path string, err error)

	// Resize changes the limits. Below what is used: ErrTooSmall, and nothing changes.
	Resize(ctx context.Context, name string, l Limits) error

	// Tag sets these tags and keeps the others; an empty value removes a tag. It works on a
	// dataset that is full.
	Tag(ctx context.Context, name string, t Tags) error

	// Rename moves a dataset with its snapshots below the same root, and leaves it
	// unmounted. ErrInUse, and nothing changes, if a process uses it.
	Rename(ctx context.Context, from, to string) error

	// Destroy removes a dataset with its snapshots; that of a dataset that is not there
	// is no error. ErrInUse if a process uses it, ErrHasClones if clones depend on it.
	Destroy(ctx context.Context, name string) error

	// Users returns the processes that use a dataset, each in words ("process 123 (sleep) has
	// it mounted"). A process that can't be looked into is an error.
	Users(ctx context.Context, name string) ([]string, error)

	// Snapshots returns a dataset's snapshots, oldest first.
	Snapshots(ctx context.Context, name string) ([]Snapshot, error)

	// Snapshot makes one. ErrExists if there is one of that name.
	Snapshot(ctx context.Context, name, snapshot string) error

	// DestroySnapshot removes one. ErrNotFound, ErrHasClones.
	DestroySnapshot(ctx context.Context, name, snapshot string) error

	// Rollback brings a dataset back to a snapshot. Later snapshots are lost where the file
	// system needs it: then ErrLaterSnapshots, unless discard is set. ErrInUse.
	Rollback(ctx context.Context, name, snapshot string, discard bool) error

	// Clone makes a dataset with the content of a snapshot.
	Clone(ctx context.Context, name, snapshot, to string, s Spec) (path string, err error)

	// Send writes a snapshot as a stream: whole, or the changes since an earlier one.
	Send(ctx context.Context, name, snapshot, since string, w io.Writer) error

	// Receive makes or continues a dataset from a stream of Send. The dataset has the
	// snapshot then, and its content. If it fails, what was there before is there still.
	// It reads to the end of the stream.
	Receive(ctx context.Context, name string, r io.Reader) error
}

// Spec is what a new dataset is.
type Spec struct {
	Limits
	Properties map[string]string // of the file system: recordsize, compression
	Tags       Tags
	Dir        string // where it is mounted, as in Backend.Mount
}

// Limits of a dataset, in bytes.
type Limits struct {
	Data      int64 // what may be written; snapshots do not count
	Snapshots int64 // what snapshots may hold besides; 0 is no limit
}

// Tags are what the dataset is, for whom. They are kept where no task can change them.
type Tags map[string]string

// with returns these tags with more of them. One that is empty is removed.
func (t Tags) with(more Tags) Tags {
	all := Tags{}
	maps.Copy(all, t)
	maps.Copy(all, more)
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

// The tags.
const (
	Kind      = "kind"      // "volume" or "slot"
	ID        = "id"        // Nomad's volume id, or the slot's
	Volume    = "volume"    // the volume's name
	Namespace = "namespace" // of the volume, or of the slot's holder
	Class     = "class"     // its name
	Node      = "node"      // Nomad's node id
	Lease     = "lease"     // of a slot: different for each reservation
	Holder    = "holder"    // of a slot: "<allocation id>/<task>" when it is known
	Schedule  = "snapshots" // of a volume: "hourly=24,daily=7"
	Trashed   = "trashed"   // when it was put into the trash, RFC 3339
	Expires   = "expires"   // when the trash gives it up, RFC 3339; none is never
	From      = "from"      // the name that it had before

	// Adopt is the key of a dataset that was received: a random text that only root of this
	// node has seen. A new volume becomes this dataset, instead of an empty one, if its
	// parameter "adopt" is the key. The tag stays, so that the same call can be repeated.
	Adopt = "adopt"

	// Moving is on a volume that is being moved to another node: what the rest of the move
	// needs, as JSON.
	Moving = "moving"
)

// Dataset is one dataset that exists.
type Dataset struct {
	Name    string
	Path    string // where its files are; empty if it is not mounted
	Created time.Time
	Tags    Tags
	Limits
	Usage
}

// Usage in bytes.
type Usage struct {
	Data      int64 // what counts against Limits.Data
	Snapshots int64 // held by snapshots alone
}

// Space of a file system in bytes.
type Space struct{ Size, Free int64 }

// Snapshot of a dataset.
type Snapshot struct {
	Name    string // without the dataset's
	Created time.Time
	Used    int64 // bytes that would be free without it
}

// What errors of this package wrap.
var (
	ErrNotFound       = errors.New("it does not exist")
	ErrExists         = errors.New("it exists")
	ErrForeign        = errors.New("it was not made by this plugin")
	ErrInUse          = errors.New("it is in use")
	ErrTooSmall       = errors.New("more than that is used")
	ErrNoSpace        = errors.New("no space is left")
	ErrHasClones      = errors.New("clones depend on it")
	ErrLaterSnapshots = errors.New("later snapshots would be lost")
	ErrUnavailable    = errors.New("it is not available")
)
