// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Cluster asks Nomad's API. Each method returns when its context ends, and within 2 s. A missing
// answer is no error: a zero value means that nothing is known.
type Cluster interface {
	// Alloc looks at the allocation of an owner: of a's task, or of another one (of an object). If
	// Nomad has no such allocation, it looks for the node, too, unless that is a's own.
	Alloc(ctx context.Context, a Asker, o endpoint.Owner) Alloc

	// Why decides what a stop of a's task is to do (the table of remote.md, §2). It is asked
	// of the owner only.
	Why(ctx context.Context, a Asker, o StopOptions) Decision

	// Orphan looks for positive evidence that no allocation will come for an object: its job
	// is stopped, dead or purged, its index is not below the count, its task is to run at an
	// endpoint that is elsewhere, or its owner's allocation is of a batch or system job and was
	// stopped by a drain. That a batch job is dead is
	// evidence only when the object has ended: a release makes it so, too. It asks with the
	// plugin's own token, which must be proven to see the namespace, and only an object that is
	// proven to be of this cluster is one: Nomad has its owner's allocation or node, or the key
	// has a cluster's name. The reason is given for both answers.
	Orphan(ctx context.Context, r *endpoint.Record, elsewhere func(name string) bool) (orphan bool, reason string)
}

// Asker is the task for which a question is asked. Its workload identity is used where the
// plugin has no token.
type Asker struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Alloc     string `json:"alloc"`
	Node      string `json:"node,omitempty"` // the asker's own, empty if it is of no node
	Task      string `json:"task"`
	Token     string `json:"token,omitempty"` // NOMAD_TOKEN of the task's environment
	Secrets   string `json:"secrets"`         // the task's secrets directory: the task may write there
}

// Alloc is an allocation as Nomad knows it.
type Alloc struct {
	State  AllocState
	Lost   bool // its client status is lost: its node was down
	Wanted bool // its desired status is run
	Canary bool // of a deployment that is not promoted yet
	Job    endpoint.JobType
	Region string // of the job, empty if it is not told
	Index  uint64 // CreateIndex of the job: another one of the same name is another job
	Told   bool   // Nomad knows how the asker's task of it ended, and not only that the allocation has left it

	// Stopped: it was stopped by hand, preempted or updated, so its replacement is to start the task anew.
	Stopped bool
}

// AllocState is what an allocation's client status says of its task.
type AllocState string

// The states of an allocation.
const (
	NoAnswer     AllocState = ""             // no API, no permission, or no answer in time
	Alive        AllocState = "alive"        // pending or running
	Ended        AllocState = "ended"        // complete, failed or lost
	Disconnected AllocState = "disconnected" // unknown: its node has a disconnect block's time to come back
	NotFound     AllocState = "not found"    // 404, for a token that is proven to see the namespace; its node is known

	// Foreign is 404, too, and nothing shows that it ever was of this cluster: Nomad does not
	// know its node, or does not show it to the token.
	Foreign AllocState = "foreign"
)

// StopOptions are the options of a task that decide on a stop.
type StopOptions struct {
	OnDrain   string `json:"on_drain"`   // "release" or "stop"
	OnUnknown string `json:"on_unknown"` // "release" or "stop"
}

// Decision is what a stop does.
type Decision struct {
	Action Action
	Reason string // in words, such as "the node is drained"
}

// Action is what is done to an object.
type Action string

// The actions.
const (
	Stop    Action = "stop"
	Release Action = "release"
	NotMine Action = "not mine" // its allocation is lost: another one may own the object by now
)
