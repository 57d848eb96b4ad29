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

// Values of the options on_lost and on_drain, and of Nomad's DesiredDescription.
const (
	onLostRestart  = "restart"
	onDrainRelease = "release"

	migrating = "alloc is being migrated" // set when the node is drained (scheduler/reconciler, StatusAllocMigrating)
)

// allocation has the fields of Nomad's allocation that are used here (nomad/structs, Allocation).
type allocation struct {
	ID, ClientStatus, DesiredStatus, DesiredDescription string

	DesiredTransition struct {
		Migrate, Reschedule, NoShutdownDelay, MigrateDisablePlacement *bool
	}
	Job *job // the version of the job that the allocation was created for
}

// job has the fields of Nomad's job that are used here.
type job struct {
	ID, Type string
	Stop     bool
}

func (a *allocation) id() string { return a.ID }

func (j *job) id() string { return j.ID }

// isSystem reports whether the job has an allocation on each node.
func (j *job) isSystem() bool {
	return j.Type == structs.JobTypeSystem || j.Type == structs.JobTypeSysBatch
}

type nomad struct{ client *agentapi.Client }

// allocation returns nil if Nomad does not have the allocation, and an error if the token does not permit reading it.
func (n nomad) allocation(ctx context.Context, namespace, id string) (*allocation, error) {
	return get(ctx, n, "alloc", "/v1/allocation/", namespace, id, &allocation{})
}

// job returns nil if Nomad reports that the job does not exist.
func (n nomad) job(ctx context.Context, namespace, id string) (*job, error) {
	return get(ctx, n, "job", "/v1/job/", namespace, id, &job{})
}

// get reads an object and checks its id: an empty answer could look like Nomad's decision to stop a task.
func get[T interface{ id() string }](
	ctx context.Context, n nomad, kind, path, namespace, id string, answer T,
) (none T, err error) {
	ctx, cancel := agentapi.Soon(ctx, askTime)
	defer cancel()
	query := url.Values{"namespace": {namespace}}
	_, err = n.client.Get(ctx, path+url.PathEscape(id), query, func(d *json.Decoder) error { return d.Decode(answer) })
	if agentapi.IsMissing(err, kind) {
		return none, nil
	}
	if err == nil && answer.id() != id {
		err = fmt.Errorf("the API's answer for %s %q is about %q", kind, id, plain.Line(answer.id(), maxMessage))
	}
	if err != nil {
		return none, err
	}
	return answer, nil
}

// askTime limits each query, and all queries of a decision together: an agent whose servers hang does not respond.
const askTime = 2 * time.Second

// meaning describes why Nomad ends a task on this node.
type meaning struct {
	release bool   // leave the run to another allocation, instead of ending it
	reason  string // part of a sentence, such as "the job was stopped"
}

// ask finds out why Nomad ends a task, because Nomad's call to the driver does not contain the reason. If the API does
// not respond, the result is a release: the next allocation of the task then takes over or ends the run, or the host
// ends it after orphan_timeout.
func (n nomad) ask(ctx context.Context, s *saved, allocID string) meaning {
	if s.OnDrain != onDrainRelease && s.OnLost == onLostRestart {
		return meaning{} // the reason does not matter: the task is always stopped
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
		return meaning{true, "failed to find out why Nomad ends the task on this node: " + err.Error()}
	}
	return meaningOf(a, j, s)
}

// meaningOf derives the reason from the allocation and its job in Nomad. Either is nil if Nomad does not have it.
func meaningOf(a *allocation, j *job, s *saved) meaning {
	is := func(b *bool) bool { return b != nil && *b }
	switch {
	case j == nil:
		return meaning{release: false, reason: "the job was purged"}
	case j.Stop:
		return meaning{release: false, reason: "the job was stopped"}
	case a == nil:
		return meaning{release: true, reason: "Nomad no longer has the allocation"}
	case a.ClientStatus == structs.AllocClientStatusLost || a.ClientStatus == structs.AllocClientStatusUnknown:
		if s.OnLost == onLostRestart {
			return meaning{release: false, reason: "Nomad has given up on this node, and on_lost is restart"}
		}
		return meaning{release: true, reason: "Nomad has given up on this node"}
	case strings.Contains(a.DesiredDescription, "reconnect"):
		return meaning{release: true, reason: "another allocation has replaced this one"}
	case a.DesiredStatus == structs.AllocDesiredStatusEvict:
		return meaning{release: false, reason: "the allocation was preempted"}
	case a.DesiredStatus != structs.AllocDesiredStatusStop:
		return meaning{release: false, reason: "the task is restarted, or its group ends"}
	}
	t := a.DesiredTransition
	// `alloc stop` sets the same fields as a drain, and in addition NoShutdownDelay and Reschedule
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

// over reports whether an allocation has ended or is lost, according to Nomad. known is false if the query has failed,
// or if Nomad does not have the allocation, which may belong to another cluster.
func (n nomad) over(ctx context.Context, namespace, allocID string) (over, known bool) {
	a, err := n.allocation(ctx, namespace, allocID)
	if a == nil || err != nil {
		return false, false
	}
	return slices.Contains(overStatus, a.ClientStatus), true
}

// begins looks up an allocation whose task is about to start. system reports whether the job has an allocation on each
// node, and wanted whether Nomad wants this allocation to run. It is an error if the allocation is lost, because its
// replacement may have completed the task.
func (n nomad) begins(ctx context.Context, namespace, allocID string) (system, wanted bool, err error) {
	a, err := n.allocation(ctx, namespace, allocID)
	if err != nil || a == nil {
		return false, false, nil
	}
	if a.ClientStatus == structs.AllocClientStatusLost {
		return false, false, errors.New("Nomad has marked this allocation as lost, and its replacement may have run the task")
	}
	wanted = a.DesiredStatus == structs.AllocDesiredStatusRun && !slices.Contains(overStatus, a.ClientStatus)
	return a.Job != nil && a.Job.isSystem(), wanted, nil
}

// answers returns an error if ask cannot use the API. It queries a job that does not exist: Nomad reports its absence
// only to a valid token. The absence of an allocation, in contrast, is reported even without a token.
func (n nomad) answers(ctx context.Context) error {
	_, err := n.job(ctx, "default", "none")
	return err
}
