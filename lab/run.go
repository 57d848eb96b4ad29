package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Run submits a job file and shows what its tasks print. A batch job is waited
// for; a service or system job until it runs. The error is not nil where a task
// failed or found no place.
func (l *Lab) Run(ctx context.Context, path string) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	job, err := parseJob(a.Client(), path)
	if err != nil {
		return err
	}
	r := &jobRun{lab: l, client: a.Client(), job: job, out: term.NewLines(l.out)}
	err = r.run(ctx)
	if ctx.Err() != nil {
		l.say("\nInterrupted; the job goes on. Stop it with: nomad job stop %s", *job.ID)
		return nil
	}
	return err
}

func parseJob(c *api.Client, path string) (*api.Job, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read job file: %w", err)
	}
	job, err := c.Jobs().ParseHCL(string(text), true)
	if err != nil {
		return nil, fmt.Errorf("failed to parse job file %s: %w", path, err)
	}
	if job.IsPeriodic() || job.IsParameterized() {
		return nil, fmt.Errorf("job %s is periodic or parameterized: submit it with nomad job run %s", *job.ID, path)
	}
	return job, nil
}

// jobRun is one submission of a job.
type jobRun struct {
	lab    *Lab
	client *api.Client
	job    *api.Job
	out    *term.Lines
	shown  map[string]int // events of a task that were looked at, by allocation and task
}

func (r *jobRun) run(ctx context.Context) error {
	id := *r.job.ID
	w := (&api.WriteOptions{Namespace: *r.job.Namespace}).WithContext(ctx)
	// Nomad does not run a batch job again that has ended and has not changed
	var before uint64 // the index of the last change of the job
	if old, _, err := r.client.Jobs().Info(id, r.query(ctx)); err == nil {
		before = *old.JobModifyIndex
		if *old.Status == "dead" || r.over(ctx, old) {
			if err := agent.Purge(ctx, r.client, *r.job.Namespace, id); err != nil {
				return err
			}
		}
	}
	reg, _, err := r.client.Jobs().Register(r.job, w)
	if err != nil {
		return fmt.Errorf("failed to submit job %s: %w", id, err)
	}
	ids, err := r.placed(ctx, reg, reg.JobModifyIndex != before)
	if err != nil {
		r.end(ctx)
		return err
	}
	if len(ids) == 0 {
		r.lab.say("Job %s runs already, unchanged.", id)
		return nil
	}
	return r.watch(ctx, ids)
}

// over says whether a batch job has ended of which Nomad does not say so yet.
func (r *jobRun) over(ctx context.Context, job *api.Job) bool {
	if *job.Type != api.JobTypeBatch && *job.Type != api.JobTypeSysbatch {
		return false
	}
	allocs, _, err := r.client.Jobs().Allocations(*job.ID, false, r.query(ctx))
	running := func(a *api.AllocationListStub) bool { return !terminal(a.ClientStatus) }
	return err == nil && len(allocs) > 0 && !slices.ContainsFunc(allocs, running)
}

// placed waits for the evaluation, and returns the allocations that it made. If the job
// has changed, those of another one count too: it may have come first, or have replaced
// what has failed already.
func (r *jobRun) placed(ctx context.Context, reg *api.JobRegisterResponse, changed bool) ([]string, error) {
	e, err := agent.Evaluated(ctx, r.client, *r.job.Namespace, reg.EvalID)
	if err != nil {
		return nil, err
	}
	if len(e.FailedTGAllocs) > 0 {
		return nil, fmt.Errorf("job %s finds no place: %s", *r.job.ID, reasons(e.FailedTGAllocs))
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
		if a.EvalID == reg.EvalID && a.DesiredStatus == api.AllocDesiredStatusRun || changed && a.CreateIndex > reg.JobModifyIndex {
			ids = append(ids, a.ID)
		}
	}
	return ids, nil
}

// reasons says in words why task groups were not placed.
func reasons(failed map[string]*api.AllocationMetric) string {
	var out []string
	for group, m := range failed {
		var why []string
		for c, n := range m.ConstraintFiltered {
			why = append(why, fmt.Sprintf("%s (%d node)", c, n))
		}
		for d, n := range m.DimensionExhausted {
			if !strings.Contains(d, ":") { // else a sentence: devices, cores
				d += " exhausted"
			}
			why = append(why, fmt.Sprintf("%s (%d node)", d, n))
		}
		if len(why) == 0 {
			why = []string{"no node is ready"}
		}
		sort.Strings(why)
		out = append(out, fmt.Sprintf("group %s: %s", group, strings.Join(why, ", ")))
	}
	sort.Strings(out)
	return strings.Join(out, "; ")
}

// watch shows the tasks' output until the allocations have ended, or, for a job
// without an end, until they have run for a moment.
func (r *jobRun) watch(ctx context.Context, ids []string) error {
	r.shown = map[string]int{}
	streams := newStreams(r)
	defer streams.stop()
	ends := *r.job.Type == api.JobTypeBatch || *r.job.Type == api.JobTypeSysbatch
	var since time.Time
	for {
		allocs, err := r.allocs(ctx, ids)
		if err != nil {
			return err
		}
		running, done, failed := 0, 0, 0
		for _, a := range allocs {
			for name, s := range a.TaskStates {
				r.events(a, name, s)
				if !s.StartedAt.IsZero() {
					streams.follow(ctx, a, name, len(ids) > 1 || len(a.TaskStates) > 1)
				}
			}
			switch {
			case a.ClientStatus == api.AllocClientStatusFailed || a.ClientStatus == api.AllocClientStatusLost:
				failed++
			case terminal(a.ClientStatus):
				done++
			case a.ClientStatus == api.AllocClientStatusRunning && steady(a):
				running++
			}
		}
		switch {
		case failed > 0:
			streams.drain(ctx)
			r.end(ctx)
			return r.failure(allocs)
		case ends && done == len(allocs):
			streams.drain(ctx)
			r.lab.say("\nJob %s is complete.", *r.job.ID)
			return nil
		case !ends && running == len(allocs):
			if since.IsZero() {
				since = time.Now()
			}
			// long enough for an early death; and for the first lines, which can be late
			if took := time.Since(since); took > time.Second && (took > r.lab.firstOutput || streams.came()) {
				streams.calm(ctx)
				r.lab.say("\nJob %s runs. Follow it with:\n\n  nomad alloc logs -f %.8s\n\nand stop it with: nomad job stop %s", *r.job.ID, ids[0], *r.job.ID)
				return nil
			}
		default:
			since = time.Time{}
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
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

// events prints what went wrong with a task as it happens, and what its driver has to
// say: restarts can take a minute, and so can a start, in which a silent lab would
// look stuck.
func (r *jobRun) events(a *api.Allocation, name string, s *api.TaskState) {
	key := a.ID + "/" + name
	for _, e := range s.Events[min(r.shown[key], len(s.Events)):] {
		switch e.Type {
		case api.TaskDriverMessage:
			r.out.Print("- "+name, e.DisplayMessage)
		case api.TaskDriverFailure, api.TaskSetupFailure, api.TaskRestarting, api.TaskFailedValidation:
			r.out.Print("! "+name, e.Type+": "+e.DisplayMessage)
		case api.TaskTerminated:
			if e.ExitCode != 0 || e.Signal != 0 {
				r.out.Print("! "+name, e.Type+": "+e.DisplayMessage)
			}
		}
	}
	r.shown[key] = len(s.Events)
}

// failure prints the events of the tasks that failed, and returns the error.
func (r *jobRun) failure(allocs []*api.Allocation) error {
	why := "failed"
	for _, a := range allocs {
		for name, s := range a.TaskStates {
			if !s.Failed {
				continue
			}
			rows := [][]string{{"TIME", "EVENT", "MESSAGE"}}
			for _, e := range s.Events {
				rows = append(rows, []string{time.Unix(0, e.Time).Format(time.TimeOnly), e.Type, e.DisplayMessage})
				if e.Type == api.TaskTerminated || e.Type == api.TaskDriverFailure || e.Type == api.TaskSetupFailure {
					why = fmt.Sprintf("failed: task %s: %s", name, e.DisplayMessage)
				}
			}
			r.lab.say("\nTask %s of allocation %.8s:", name, a.ID)
			if err := term.Table(r.lab.out, rows...); err != nil {
				return err
			}
		}
	}
	return errors.New("job " + *r.job.ID + " " + why)
}

// end stops a job that failed, so that it is not started again behind the
// user's back. Its allocations stay to be looked at.
func (r *jobRun) end(ctx context.Context) {
	r.client.Jobs().Deregister(*r.job.ID, false, (&api.WriteOptions{Namespace: *r.job.Namespace}).WithContext(ctx))
}

func (r *jobRun) query(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: *r.job.Namespace}).WithContext(ctx)
}

// steady says whether every task has started and none was started again.
func steady(a *api.Allocation) bool {
	for _, s := range a.TaskStates {
		if s.Restarts > 0 || s.State == "pending" {
			return false
		}
	}
	return len(a.TaskStates) > 0
}

func terminal(clientStatus string) bool {
	switch clientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
