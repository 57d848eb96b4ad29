// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
	"github.com/outrider-dev/outrider/internal/core/plain"
)

// The values of the options, and Nomad's description of a migration.
const (
	onLostRestart  = "restart"
	onDrainRelease = "release"

	migrating = "alloc is being migrated" // scheduler/reconciler, StatusAllocMigrating
)

// allocation is what Nomad says of an allocation (nomad/structs, Allocation).
type allocation struct {
	ID, ClientStatus, DesiredStatus, DesiredDescription string

	DesiredTransition struct {
		Migrate, Reschedule, NoShutdownDelay, MigrateDisablePlacement *bool
	}
	Job *job // as the allocation was made for it
}

// job is what Nomad says of a job.
type job struct {
	ID, Type string
	Stop     bool
}

func (a *allocation) id() string { return a.ID }

func (j *job) id() string { return j.ID }

// isSystem is whether the job has an allocation on each node.
func (j *job) isSystem() bool {
	return j.Type == structs.JobTypeSystem || j.Type == structs.JobTypeSysBatch
}

// nomad is the API of the agent.
type nomad struct {
	client *agentapi.Client
	err    error // there is no client
}

// allocation returns nil if Nomad knows that there is none. Of one that a token may not see, the answer is another one.
func (n nomad) allocation(ctx context.Context, namespace, id string) (*allocation, error) {
	return get(ctx, n, "alloc", "/v1/allocation/", namespace, id, &allocation{})
}

// job returns nil if Nomad knows that there is none.
func (n nomad) job(ctx context.Context, namespace, id string) (*job, error) {
	return get(ctx, n, "job", "/v1/job/", namespace, id, &job{})
}

// get reads the answer, which has to be about what was asked for: a task may be stopped for what it does not say.
func get[T interface{ id() string }](
	ctx context.Context, n nomad, kind, path, namespace, id string, answer T,
) (none T, err error) {
	if n.err != nil {
		return none, n.err
	}
	ctx, cancel := agentapi.Soon(ctx, askTime)
	defer cancel()
	query := url.Values{"namespace": {namespace}}
	_, err = n.client.Get(ctx, path+url.PathEscape(id), query, func(d *json.Decoder) error { return d.Decode(answer) })
	if agentapi.IsMissing(err, kind) {
		return none, nil
	}
	if err == nil && answer.id() != id {
		err = fmt.Errorf("the API's answer for %s %q is about %q", kind, id, plain.Line(answer.id(), mostOfReason))
	}
	if err != nil {
		return none, err
	}
	return answer, nil
}

// askTime is how long a question, and those of one decision, may take: an agent whose servers hang does not answer.
const askTime = 2 * time.Second

// meaning is what Nomad means by ending a task on this node.
type meaning struct {
	release bool   // another allocation is to have the run
	reason  string // as a part of a sentence
}

// ask finds out why Nomad ends a task: a driver is told the same for all reasons. Without an answer the run is
// released: it is ended by the next allocation of the task, or at its orphan_timeout.
func (n nomad) ask(ctx context.Context, s *saved, allocID string) meaning {
	if s.OnDrain != onDrainRelease && s.OnLost == onLostRestart {
		return meaning{} // there is nothing to ask
	}
	ctx, cancel := agentapi.Soon(ctx, askTime)
	defer cancel()
	of := NamesOf(s.Key)
	a, err := n.allocation(ctx, of.Namespace, allocID)
	var j *job
	if err == nil {
		j, err = n.job(ctx, of.Namespace, of.Job)
	}
	if err != nil {
		return meaning{true, "it is not known why Nomad ends it here: " + err.Error()}
	}
	return meaningOf(a, j, s)
}

// meaningOf decides by what Nomad says of the allocation and of its job, which are nil if there is none.
func meaningOf(a *allocation, j *job, s *saved) meaning {
	is := func(b *bool) bool { return b != nil && *b }
	switch {
	case j == nil:
		return meaning{release: false, reason: "the job was purged"}
	case j.Stop:
		return meaning{release: false, reason: "the job was stopped"}
	case a == nil:
		return meaning{release: true, reason: "Nomad has no such allocation any more"}
	case a.ClientStatus == structs.AllocClientStatusLost || a.ClientStatus == structs.AllocClientStatusUnknown:
		if s.OnLost == onLostRestart {
			return meaning{release: false, reason: "Nomad has given this node up, and on_lost is restart"}
		}
		return meaning{release: true, reason: "Nomad has given this node up"}
	case strings.Contains(a.DesiredDescription, "reconnect"):
		return meaning{release: true, reason: "another allocation goes on in its place"}
	case a.DesiredStatus == structs.AllocDesiredStatusEvict:
		return meaning{release: false, reason: "the allocation was preempted"}
	case a.DesiredStatus != structs.AllocDesiredStatusStop:
		return meaning{release: false, reason: "the task is restarted, or its group ends"}
	}
	t := a.DesiredTransition
	// `alloc stop` sets the same, and these two besides
	if a.DesiredDescription != migrating || !is(t.Migrate) || t.NoShutdownDelay != nil || is(t.Reschedule) {
		return meaning{release: false, reason: a.DesiredDescription}
	}
	switch {
	case is(t.MigrateDisablePlacement) || j.isSystem():
		return meaning{release: false, reason: "the node is drained, and no other allocation follows"}
	case s.OnDrain != onDrainRelease:
		return meaning{release: false, reason: "the node is drained, and on_drain is stop"}
	}
	return meaning{release: true, reason: "the node is drained"}
}

var overStatus = []string{
	structs.AllocClientStatusComplete, structs.AllocClientStatusFailed, structs.AllocClientStatusLost,
	structs.AllocClientStatusUnknown,
}

// over is whether an allocation is over. It is not known of one that Nomad does not know: it may be another cluster's.
func (n nomad) over(ctx context.Context, namespace, allocID string) (over, known bool) {
	a, err := n.allocation(ctx, namespace, allocID)
	if a == nil || err != nil {
		return false, false
	}
	return slices.Contains(overStatus, a.ClientStatus), true
}

// begins returns whether an allocation, whose task is to start, is of a job that has one on each node, and whether
// Nomad wants it to run. An error is that Nomad has given it up: the one in its place may have run the task to its end.
func (n nomad) begins(ctx context.Context, namespace, allocID string) (system, wanted bool, err error) {
	a, err := n.allocation(ctx, namespace, allocID)
	if err != nil || a == nil {
		return false, false, nil
	}
	if a.ClientStatus == structs.AllocClientStatusLost {
		return false, false, errors.New("Nomad has given this allocation up, and another one may have run its task")
	}
	wanted = a.DesiredStatus == structs.AllocDesiredStatusRun && !slices.Contains(overStatus, a.ClientStatus)
	return a.Job != nil && a.Job.isSystem(), wanted, nil
}

// answers is nil if ask gets answers. Nomad tells everybody that an allocation does not exist, but not that of a job.
func (n nomad) answers(ctx context.Context) error {
	_, err := n.job(ctx, "default", "none")
	return err
}
