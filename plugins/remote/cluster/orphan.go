// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Orphan is part of engine.Cluster.
func (c *Client) Orphan(ctx context.Context, r *endpoint.Record, elsewhere func(string) bool) (bool, string) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	by := c.tokens(nil)[0]
	if by.err != nil {
		return false, by.err.Error()
	}
	job, err := c.job(ctx, by, r.Key.Region, r.Key.Namespace, r.Key.Job)
	if err != nil {
		return false, err.Error()
	}
	yes, reason := orphan(r, job, elsewhere)
	if !yes && !drainEnds(typeOf(job)) {
		return false, reason
	}
	var owner *api.Allocation
	if r.Owner.Alloc != "" {
		owner, err = c.allocation(ctx, by, r.Key.Region, r.Owner.Alloc)
	}
	switch {
	case err != nil:
		return false, err.Error()
	case yes && r.Key.Cluster == "" && owner == nil && !c.hasNode(ctx, r.Key.Region, r.Owner.Node, by):
		return false, fmt.Sprintf("%s here, but it may be another cluster's: this one does not know its allocation, nor its "+
			"node (needs node:read, or the option cluster)", reason)
	case yes:
		return true, reason
	case owner != nil && drained(owner):
		return true, fmt.Sprintf("its allocation of a %s job was stopped by a drain, and nothing replaces it", typeOf(job))
	}
	return false, reason
}

// orphan says whether a job, as it is now, has no place for what r runs. A job that runs and is not placed has: its
// next allocation takes the object over (hashicorp/nomad#10592), unless it runs elsewhere.
func orphan(r *endpoint.Record, job *api.Job, elsewhere func(string) bool) (bool, string) {
	switch {
	case job == nil:
		return true, "its job was purged"
	case r.JobIndex != 0 && job.CreateIndex != nil && *job.CreateIndex != r.JobIndex:
		return true, "its job was purged, and another one has its name"
	case is(job.Stop):
		return true, "its job is stopped"
	case job.Status != nil && *job.Status == "dead":
		// A batch task that was released for a reason that nobody told is complete for Nomad, which replaces nothing.
		if t := typeOf(job); (t == endpoint.Batch || t == endpoint.SysBatch) && r.State != endpoint.Exited {
			return false, "its job is dead, but nobody has stopped it: it runs to its end"
		}
		return true, "its job is dead"
	}
	group := job.LookupTaskGroup(r.Key.Group)
	if group == nil {
		return true, "its job has no group " + r.Key.Group + " any more"
	}
	i := slices.IndexFunc(group.Tasks, func(t *api.Task) bool { return t.Name == r.Key.Task })
	if i < 0 {
		return true, "its job has no task " + r.Key.Task + " any more"
	}
	at, _ := group.Tasks[i].Config["endpoint"].(string)
	switch t := typeOf(job); {
	case (t == endpoint.Service || t == endpoint.Batch) && group.Count != nil && r.Key.Index >= *group.Count:
		return true, fmt.Sprintf("its job has a count of %d", *group.Count)
	case at != "" && elsewhere(at):
		return true, "its job runs the task at endpoint " + at + " now"
	}
	return false, "its job runs"
}

// drainEnds reports whether a drain ends allocations of a job without a replacement.
func drainEnds(t endpoint.JobType) bool { return t != endpoint.Service && t != endpoint.Unknown }

func drained(a *api.Allocation) bool {
	t := a.DesiredTransition
	return a.DesiredStatus == api.AllocDesiredStatusStop && t.NoShutdownDelay == nil &&
		(a.DesiredDescription == becauseTainted ||
			a.DesiredDescription == becauseMigrating && is(t.Migrate) && is(t.MigrateDisablePlacement))
}
