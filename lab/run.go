// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// Run submits a job file and shows the events and the output of its tasks. It returns when a batch job has ended, or
// when a service or system job runs. It first starts the lab if none is up. It fails if a task fails or is not placed.
func (l *Lab) Run(ctx context.Context, path string) error {
	_, err := os.Stat(path)
	if err != nil {
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
	err = newRun(l, a, job).run(ctx)
	if err != nil && cancelled(ctx) {
		return Interrupted(fmt.Sprintf("job %s keeps running. Stop it with: %s lab:stop %[1]s", *job.ID, mage))
	}
	return err
}

// jobRun is a run of a job, whose events and output it shows.
type jobRun struct {
	lab     *Lab
	agent   agent.Agent
	client  *api.Client
	job     *api.Job
	out     *term.Lines
	streams []*stream
	shown   map[string]int // number of printed events, by allocation and task
}

func newRun(l *Lab, a agent.Agent, job *api.Job) *jobRun {
	return &jobRun{lab: l, agent: a, client: a.Client(), job: job, out: term.NewLines(l.out), shown: map[string]int{}}
}

func (r *jobRun) run(ctx context.Context) error {
	if err := r.forget(ctx); err != nil {
		return err
	}
	w := (&api.WriteOptions{Namespace: *r.job.Namespace}).WithContext(ctx)
	reg, _, err := r.client.Jobs().Register(r.job, w)
	if err != nil {
		return fmt.Errorf("failed to submit job %s: %w", *r.job.ID, err)
	}
	if r.job.IsPeriodic() || r.job.IsParameterized() {
		r.lab.say("Job %s is submitted; it runs when it is due or dispatched.", *r.job.ID)
		r.hints()
		return nil
	}
	ids, err := r.placed(ctx, reg)
	if err == nil {
		err = r.watch(ctx, ids, *r.job.Type == api.JobTypeBatch || *r.job.Type == api.JobTypeSysbatch)
	}
	if err != nil && ctx.Err() == nil { // stop the job, which Nomad would restart; its allocations remain for inspection
		r.client.Jobs().Deregister(*r.job.ID, false, w)
	}
	return err
}

// forget purges the job if its earlier run has ended, because Nomad does not run an unchanged batch job again.
func (r *jobRun) forget(ctx context.Context) error {
	old, _, err := r.client.Jobs().Info(*r.job.ID, r.query(ctx))
	if err != nil || old.IsPeriodic() || old.IsParameterized() {
		return nil //nolint:nilerr // no earlier run, or Register reports the same error
	}
	left, err := agent.Unended(ctx, r.client, *r.job.Namespace, fmt.Sprintf("JobID == %q", *r.job.ID))
	if err != nil || len(left) > 0 {
		return err
	}
	return agent.Purge(ctx, r.client, *r.job.Namespace, *r.job.ID)
}

// placed waits until Nomad has evaluated the job, and returns the ids of the allocations of this version.
func (r *jobRun) placed(ctx context.Context, reg *api.JobRegisterResponse) (ids []string, err error) {
	e, err := agent.Evaluated(ctx, r.client, *r.job.Namespace, reg.EvalID)
	if err != nil {
		return nil, err
	}
	if len(e.FailedTGAllocs) > 0 {
		why, _ := nomadCommand(ctx, r.agent, "eval", "status", "-namespace="+*r.job.Namespace, reg.EvalID).CombinedOutput()
		_, words, _ := strings.Cut(string(why), "Failed Placements\n")
		return nil, fmt.Errorf("failed to place job %s:\n%s", *r.job.ID, strings.TrimSpace(words))
	}
	if e.Status != api.EvalStatusComplete {
		return nil, fmt.Errorf("failed to evaluate job %s (status %s): %s", *r.job.ID, e.Status, e.StatusDescription)
	}
	list, _, err := r.client.Jobs().Allocations(*r.job.ID, false, r.query(ctx))
	if err != nil {
		return nil, fmt.Errorf("failed to list the allocations of job %s: %w", *r.job.ID, err)
	}
	for _, a := range list {
		if a.CreateIndex > reg.JobModifyIndex && a.DesiredStatus == api.AllocDesiredStatusRun {
			ids = append(ids, a.ID)
		}
	}
	return ids, nil
}

// watch shows events and output until all allocations have ended or, if ends is false, until they have run for a
// moment.
func (r *jobRun) watch(ctx context.Context, ids []string, ends bool) error {
	var since time.Time // when all tasks were first seen running; zero unless all run now
	for {
		allocs, err := r.show(ctx, ids)
		if err != nil {
			return err
		}
		printed := r.output(ctx)
		running, done, failed, why := 0, 0, 0, ""
		for _, a := range allocs {
			switch {
			case a.ClientStatus == api.AllocClientStatusFailed || a.ClientStatus == api.AllocClientStatusLost:
				failed++
				why = nomad.Plain(a.ClientDescription)
			case a.ClientTerminalStatus():
				done++
			case steady(a):
				running++
			}
		}
		switch {
		case failed > 0:
			r.drain(ctx)
			_, _ = r.show(ctx, ids) // a driver may report the reason of a failure just after the exit
			return fmt.Errorf("job %s failed: %s", *r.job.ID, why)
		case ends && done == len(allocs):
			r.drain(ctx)
			r.lab.say("\nJob %s is complete.", *r.job.ID)
			return nil
		case ends || running < len(allocs):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		// Wait long enough to see an early exit, and for the first lines of output, which can be late.
		case time.Since(since) > time.Second && (time.Since(since) > r.lab.firstOutput || printed):
			r.drain(ctx)
			r.lab.say("\nJob %s runs.", *r.job.ID)
			r.hints()
			return nil
		}
		if err := poll.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// steady reports whether every task of an allocation has started, and none was restarted.
func steady(a *api.Allocation) bool {
	for _, s := range a.TaskStates {
		if s.Restarts > 0 || s.State == "pending" {
			return false
		}
	}
	return len(a.TaskStates) > 0 && a.ClientStatus == api.AllocClientStatusRunning
}

// hints prints the next commands for a submitted job.
func (r *jobRun) hints() {
	r.lab.say("Follow its output, and stop it, with:\n")
	r.lab.hint("lab:logs -job=%s", *r.job.ID)
	r.lab.hint("lab:stop %s", *r.job.ID)
}

func (r *jobRun) query(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: *r.job.Namespace}).WithContext(ctx)
}

// parseJob parses a job file with the nomad program.
func parseJob(ctx context.Context, a agent.Agent, path string) (*api.Job, error) {
	cmd := nomadCommand(ctx, a, "job", "run", "-output", path)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil && errOut.Len() > 0 {
		return nil, fmt.Errorf("failed to parse the job file:\n%s", strings.TrimSpace(errOut.String()))
	}
	var parsed struct{ Job *api.Job }
	if err == nil {
		err = json.Unmarshal(out, &parsed)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to parse the job file: %w", err)
	}
	parsed.Job.Canonicalize()
	return parsed.Job, nil
}
