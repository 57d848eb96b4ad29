// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package endpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// ByHand is the reason of an object that a person has stopped.
const ByHand = "stopped by hand"

// Key names a task of a job without anything of the allocation or the node that it is on, so
// that another node finds its object again. A replacement that comes from a blocked
// evaluation has no handle and no previous allocation, but the same names and index
// (hashicorp/nomad#10592).
type Key struct {
	Cluster   string `json:"cluster,omitempty"` // option cluster of the plugin
	Region    string `json:"region"`
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Task      string `json:"task"`
	Index     int    `json:"index"`          // of the allocation's name
	Node      string `json:"node,omitempty"` // of a system job, whose index is 0 on every node
}

func (k Key) String() string {
	s := fmt.Sprintf("%s/%s/%s.%s[%d]/%s", k.Region, k.Namespace, k.Job, k.Group, k.Index, k.Task)
	if k.Node != "" {
		s += "@" + k.Node
	}
	return s
}

// Name is that of the object of a key whose specification has this hash: nomad-<24 hex>-<12 hex>.
func (k Key) Name(hash string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{
		k.Cluster, k.Region, k.Namespace, k.Job, k.Group, k.Task, fmt.Sprint(k.Index), k.Node,
	}, "\x00")))
	return fmt.Sprintf("nomad-%s-%.12s", hex.EncodeToString(sum[:12]), hash)
}

// Owner is a start of a task.
type Owner struct {
	Alloc  string `json:"alloc"`
	Node   string `json:"node"`
	TaskID string `json:"task_id"` // drivers.TaskConfig.ID: new for each start
}

// Ref names an object as its caller knows it.
type Ref struct {
	Name  string `json:"name"`
	Epoch uint64 `json:"epoch"`

	// Start is Owner.TaskID of the record. It tells an object from an earlier one of the same
	// name, whose epochs began with 1, too. Empty means any.
	Start string `json:"start,omitempty"`
}

// State of an object.
type State string

// The states. An object moves down this list only, except that Take makes a Released object
// Running again.
const (
	Starting State = "starting" // its program was never run
	Running  State = "running"
	Released State = "released" // it runs, and its owner has given it up
	Exited   State = "exited"

	// Damaged is an object whose record can't be read: Name and Reason are all that is known.
	// Nothing is decided about it automatically; only a person removes it.
	Damaged State = "damaged"
)

// Record is what is known of an object.
type Record struct {
	Name  string `json:"name"`
	Key   Key    `json:"key"`
	Hash  string `json:"hash"` // of the specification, see Key.Name
	Epoch uint64 `json:"epoch"`
	Owner Owner  `json:"owner"`
	State State  `json:"state"`

	Job    JobType `json:"job"`    // of the job, for the reaper
	Reason string  `json:"reason"` // of the last change, in words

	// JobIndex is the job's CreateIndex, 0 where it is unknown. It tells a job from an earlier one of
	// the same name that was purged.
	JobIndex uint64 `json:"job_index,omitempty"`

	// GivenUp is set by a release: in state Released, and in Exited if the object ended before
	// its next owner came. Nomad was not told of that exit, whatever it says about the owner.
	// Take resets it.
	GivenUp bool `json:"given_up,omitempty"`

	Created time.Time     `json:"created"` // by the endpoint's clock, as all times
	Since   time.Time     `json:"since"`   // when the state or the owner changed
	Orphan  time.Duration `json:"orphan"`  // orphan_timeout of the task, 0: none
	Kill    Kill          `json:"kill"`    // how it is stopped when there is nobody to say

	Mutable

	// Age is how long before it was read the state or the owner changed (Since), by the
	// endpoint's clock.
	Age time.Duration `json:"age"`

	// Busy is set with State Damaged where the endpoint answers, but could not look at this object in time. The
	// object may be a good one.
	Busy bool `json:"busy,omitempty"`

	// Lease is how long the owner's lease still lasts by the endpoint's clock when the record
	// was read, negative for how long ago it ended. It means nothing unless State is
	// Starting or Running.
	Lease time.Duration `json:"lease"`

	Exit    *task.Exit        `json:"exit,omitempty"` // in state Exited, Lost where it is unknown how
	PID     int               `json:"pid,omitempty"`  // on its host, 0 where unknown
	Started time.Time         `json:"started,omitzero"`
	Ports   map[string]int    `json:"ports,omitempty"` // by label
	More    map[string]string `json:"more,omitempty"`  // attributes for a person
}

// Ref is the object as the record has it.
func (r *Record) Ref() Ref { return Ref{Name: r.Name, Epoch: r.Epoch, Start: r.Owner.TaskID} }

// Is reports whether the object still is as ref has it. Every change is refused with ErrEpoch
// where it is not.
func (r *Record) Is(ref Ref) bool {
	return r.Name == ref.Name && r.Epoch == ref.Epoch && (ref.Start == "" || r.Owner.TaskID == ref.Start)
}

// Mutable is what an owner writes without a change of state.
type Mutable struct {
	Logs map[string]LogMark `json:"logs,omitempty"` // by stream; a stream that is not named keeps its mark
	Told bool               `json:"told,omitempty"` // Nomad was told of the exit

	// Files is the digest of local/ when it was last copied, empty if that is what Hash was computed from. Renew and
	// Release leave the stored digest as it is if this one is empty.
	Files string `json:"files,omitempty"`
}

// LogMark is how far the output was copied to an allocation's files.
type LogMark struct {
	Place Place         `json:"place"`           // on the endpoint: what is before it was copied
	Alloc string        `json:"alloc,omitempty"` // to whose files
	Local task.LogPlace `json:"local"`           // the end of these files then

	// Before is the former allocation's mark at the takeover, without its own Before. If its node
	// could not store a mark any more, its files have output behind this one. This allocation has
	// that output, too, so the node removes it when it returns.
	Before *LogMark `json:"before,omitempty"`
}

// Place is a place in an output stream. Its meaning is the endpoint's; the zero value is the
// beginning.
type Place struct {
	File   int64 `json:"file,omitempty"`   // index of the file, or nanoseconds since 1970
	Offset int64 `json:"offset,omitempty"` // bytes behind that
}

// JobType is that of a Nomad job.
type JobType string

// The types of jobs.
const (
	Service  JobType = "service"
	Batch    JobType = "batch"
	System   JobType = "system"
	SysBatch JobType = "sysbatch"
	Unknown  JobType = "" // no API has told
)

// Kill is how an object is stopped.
type Kill struct {
	Signal string        `json:"signal"`
	Grace  time.Duration `json:"grace"`
}
