// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// Answer is what Nomad says when it is asked why a task is stopped.
type Answer struct {
	Silence string // why it says nothing; all else means nothing then

	Alloc *Allocation // nil: Nomad does not have it any more

	Purged  bool             // Nomad has no job of this name any more
	Stopped bool             // the job is stopped
	Job     endpoint.JobType // of the job as it is now
}

// Allocation is what decides of the allocation.
type Allocation struct {
	Desired, Client string // the desired and the client status
	Because         string // the description of the desired status

	Migrate     bool // the transition of a drain, and of nomad alloc stop
	NoPlacement bool // the transition of a drained batch job: nothing replaces the allocation
	ByHand      bool // only nomad alloc stop says something of the shutdown delay
	Replaced    bool // not needed, though its job has a place for it: another one of its name is kept
}

// What the scheduler says of an allocation that it stops (scheduler/structs/const.go).
const (
	becauseNotNeeded   = "alloc not needed due to job update"
	becauseMigrating   = "alloc is being migrated"
	becauseUpdating    = "alloc is being updated due to job update"
	becauseTainted     = "alloc not needed as node is tainted"
	becauseLost        = "alloc is lost since its node is down"
	becauseReconnected = "alloc not needed due to disconnected client reconnect"
)

// Decide says what a stop does.
func Decide(a Answer, o engine.StopOptions) engine.Decision {
	stop := func(format string, args ...any) engine.Decision {
		return engine.Decision{Action: engine.Stop, Reason: fmt.Sprintf(format, args...)}
	}
	release := func(reason string) engine.Decision {
		return engine.Decision{Action: engine.Release, Reason: reason}
	}
	switch {
	case a.Silence != "" && o.OnUnknown == "stop":
		return stop("on_unknown is stop, and the reason of the stop is not known: %s", a.Silence)
	case a.Silence != "":
		return release("the reason of the stop is not known: " + a.Silence)
	case a.Purged:
		return stop("the job was purged")
	case a.Stopped:
		return stop("the job is stopped")
	case a.Alloc == nil:
		return release("Nomad does not know the allocation any more, and its job is there")
	}
	v := a.Alloc
	switch {
	case lost(v.Desired, v.Client, v.Because):
		return engine.Decision{Action: engine.NotMine, Reason: "the allocation was lost with its node"}
	case v.Desired == api.AllocDesiredStatusEvict:
		return stop("the allocation is preempted")
	case v.Desired == api.AllocDesiredStatusRun && v.Client == api.AllocClientStatusUnknown:
		return release("the node is cut off from Nomad's servers")
	case v.Desired == api.AllocDesiredStatusRun:
		return stop("the task is restarted, or its group ends")
	case v.Because == becauseReconnected, v.Replaced:
		return release("another allocation was kept when a node was connected again")
	case v.Because == becauseMigrating && v.ByHand:
		return stop("the allocation was stopped by hand")
	case v.Because == becauseMigrating && v.Migrate && (v.NoPlacement || a.Job == endpoint.Batch),
		v.Because == becauseTainted:
		return stop("the node is drained, and nothing replaces the task of a %s job", a.Job)
	case v.Because == becauseMigrating && v.Migrate && o.OnDrain == "stop":
		return stop("the node is drained, and on_drain is stop")
	case v.Because == becauseMigrating && v.Migrate:
		return release("the node is drained")
	}
	return stop("Nomad says: %s", v.Because)
}

// replacedOnPurpose reports whether an allocation is stopped so that its replacement starts the task anew.
func replacedOnPurpose(a *api.Allocation) bool {
	switch {
	case a.DesiredStatus == api.AllocDesiredStatusEvict:
		return true
	case a.DesiredStatus != api.AllocDesiredStatusStop:
		return false
	}
	return a.DesiredDescription == becauseUpdating ||
		a.DesiredDescription == becauseMigrating && a.DesiredTransition.NoShutdownDelay != nil
}

// lost reports whether the servers gave an allocation up with its node. When the node comes back, the client status
// is what the client says, again.
func lost(desired, client, because string) bool {
	return client == api.AllocClientStatusLost || desired == api.AllocDesiredStatusStop && because == becauseLost
}
