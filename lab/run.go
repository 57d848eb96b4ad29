// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Run submits a job file and shows what its tasks print. It waits until a batch job ends, or until a service or system
// job runs. It starts the lab if none runs. The error is not nil if a task failed or was not placed.
func (l *Lab) Run(ctx context.Context, path string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("failed to read job file: %w", err)
	}
	a, err := l.open(ctx)
	if errors.Is(err, errDown) || errors.Is(err, errEnded) {
		l.say("The lab is not up: starting it.")
		if a, err = l.start(ctx, With{}); err == nil {
			l.say("Web UI   %s/ui\n", a.Address())
		}
	}
	if err != nil {
		return err
	}
	job, err := parseJob(ctx, a, path)
	if err != nil {
		return err
	}
	r := newRun(l, a)
	r.job = job
	if err = r.run(ctx); err != nil && cancelled(ctx) {
		return goesOn(*job.ID)
	}
	return err
}

// jobRun is one submission of a job.
type jobRun struct {
	lab     *Lab
	agent   agent.Agent
	client  *api.Client
	job     *api.Job
	out     *term.Lines
	streams []*stream
	shown   map[string]int // number of events that were printed, by allocation and task
}

func newRun(l *Lab, a agent.Agent) *jobRun {
	return &jobRun{lab: l, agent: a, client: a.Client(), out: term.NewLines(l.out), shown: map[string]int{}}
}

func (r *jobRun) run(ctx context.Context) error {
	id := *r.job.ID
	w := (&api.WriteOptions{Namespace: *r.job.Namespace}).WithContext(ctx)
	// Nomad does not run a batch job again that has ended and has not changed
	var before uint64 // the index of the last change of the job
	if old, _, err := r.client.Jobs().Info(id, r.query(ctx)); err == nil {
		before = *old.JobModifyIndex
		left, err := agent.Unended(ctx, r.client, *r.job.Namespace, id)
		if err == nil && len(left) == 0 && !old.IsPeriodic() && !old.IsParameterized() {
			err = agent.Purge(ctx, r.client, *r.job.Namespace, id)
		}
		if err != nil {
			return err
		}
	}
	reg, _, err := r.client.Jobs().Register(r.job, w)
	if err != nil {
		return fmt.Errorf("failed to submit job %s: %s", id, plain(err))
	}
	if r.job.IsPeriodic() || r.job.IsParameterized() {
		r.lab.say("Job %s is submitted; it runs when it is due, or dispatched.", id)
		r.hints()
		return nil
	}
	ids, err := r.placed(ctx, reg, reg.JobModifyIndex != before)
	if err != nil {
		r.end(ctx)
		return err
	}
	if len(ids) == 0 {
		r.lab.say("Job %s runs already, unchanged.", id)
		r.hints()
		return nil
	}
	return r.watch(ctx, ids)
}

// placed waits for the evaluation, and returns the allocations that it made. If the job has changed, the allocations
// of another evaluation count too: it may have come first, or may have replaced one that failed.
func (r *jobRun) placed(ctx context.Context, reg *api.JobRegisterResponse, changed bool) ([]string, error) {
	e, err := agent.Evaluated(ctx, r.client, *r.job.Namespace, reg.EvalID)
	if err != nil {
		return nil, err
	}
	if len(e.FailedTGAllocs) > 0 {
		why, _ := nomadCommand(ctx, r.agent, "eval", "status", "-namespace="+*r.job.Namespace, reg.EvalID).CombinedOutput()
		_, words, _ := strings.Cut(string(why), "Failed Placements\n")
		return nil, fmt.Errorf("job %s finds no place:\n%s", *r.job.ID, strings.TrimSpace(words))
	}
	if e.Status != api.EvalStatusComplete {
		return nil, fmt.Errorf("the evaluation of job %s is %s: %s", *r.job.ID, e.Status, e.StatusDescription)
	}
	list, _, err := r.client.Jobs().Allocations(*r.job.ID, false, r.query(ctx))
	if err != nil {
		return nil, fmt.Errorf("failed to list the allocations of job %s: %w", *r.job.ID, err)
	}
	var ids []string
	for _, a := range list {
		ours := a.EvalID == reg.EvalID && a.DesiredStatus == api.AllocDesiredStatusRun
		if ours || changed && a.CreateIndex > reg.JobModifyIndex {
			ids = append(ids, a.ID)
		}
	}
	return ids, nil
}

// watch shows the tasks' output until the allocations have ended or, for a job without an end, until they have run for
// a moment.
func (r *jobRun) watch(ctx context.Context, ids []string) error {
	ends := *r.job.Type == api.JobTypeBatch || *r.job.Type == api.JobTypeSysbatch
	var since time.Time
	printed := false
	for {
		allocs, err := r.show(ctx, ids)
		if err != nil {
			return err
		}
		printed = r.output(ctx) || printed
		running, done, failed := 0, 0, 0
		for _, a := range allocs {
			switch {
			case a.ClientStatus == api.AllocClientStatusFailed || a.ClientStatus == api.AllocClientStatusLost:
				failed++
			case a.ClientTerminalStatus():
				done++
			case a.ClientStatus == api.AllocClientStatusRunning && steady(a):
				running++
			}
		}
		switch {
		case failed > 0:
			r.drain(ctx)
			r.end(ctx)
			if now, err := r.show(ctx, ids); err == nil { // a driver may explain an exit just after it
				allocs = now
			}
			return r.failure(allocs)
		case ends && done == len(allocs):
			r.drain(ctx)
			r.lab.say("\nJob %s is complete.", *r.job.ID)
			return nil
		case !ends && running == len(allocs):
			if since.IsZero() {
				since = time.Now()
			}
			// long enough for an early death; and for the first lines, which can be late
			if took := time.Since(since); took > time.Second && (took > r.lab.firstOutput || printed) {
				r.drain(ctx)
				r.lab.say("\nJob %s runs.", *r.job.ID)
				r.hints()
				return nil
			}
		default:
			since = time.Time{}
		}
		if err := poll.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// show prints the new events of allocations, and returns them.
func (r *jobRun) show(ctx context.Context, ids []string) ([]*api.Allocation, error) {
	allocs, err := r.allocs(ctx, ids)
	for _, a := range allocs {
		for name, s := range a.TaskStates {
			r.events(a, name, s)
			if !s.StartedAt.IsZero() {
				r.follow(a, name, len(allocs) > 1 || len(a.TaskStates) > 1)
			}
		}
	}
	return allocs, err
}

func (r *jobRun) allocs(ctx context.Context, ids []string) ([]*api.Allocation, error) {
	var out []*api.Allocation
	for _, id := range ids {
		a, _, err := r.client.Allocations().Info(id, r.query(ctx))
		if err != nil {
			return nil, fmt.Errorf("failed to read allocation %.8s: %w", id, err)
		}
		out = append(out, a)
	}
	return out, nil
}

// hints prints the next commands for a job that runs.
func (r *jobRun) hints() {
	r.lab.say("Follow its output, and stop it, with:\n")
	r.lab.hint("lab:logs -job=%s", *r.job.ID)
	r.lab.hint("lab:stop %s", *r.job.ID)
}

// end stops a job that failed, so that Nomad does not start it again. Its allocations stay for inspection.
func (r *jobRun) end(ctx context.Context) {
	r.client.Jobs().Deregister(*r.job.ID, false, (&api.WriteOptions{Namespace: *r.job.Namespace}).WithContext(ctx))
}

func (r *jobRun) query(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: *r.job.Namespace}).WithContext(ctx)
}

// steady reports whether every task has started and none was restarted.
func steady(a *api.Allocation) bool {
	for _, s := range a.TaskStates {
		if s.Restarts > 0 || s.State == "pending" {
			return false
		}
	}
	return len(a.TaskStates) > 0
}
