// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package stage

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// Job is a job of the demo's agent.
type Job struct {
	ID    string
	Alloc *api.Allocation // the only one, as last seen; nil: none is placed

	agent agent.Agent
}

// Submit submits a job file's text.
func Submit(a agent.Agent, text string) (*Job, error) {
	job, err := a.Client().Jobs().ParseHCL(text, true)
	if err != nil {
		return nil, fmt.Errorf("failed to parse the job: %w", err)
	}
	if _, _, err := a.Client().Jobs().Register(job, nil); err != nil {
		return nil, fmt.Errorf("failed to submit the job: %w", err)
	}
	return &Job{ID: *job.ID, agent: a}, nil
}

// Stop stops the job.
func (j *Job) Stop(purge bool) error {
	if _, _, err := j.agent.Client().Jobs().Deregister(j.ID, purge, nil); err != nil {
		return fmt.Errorf("failed to stop the job: %w", err)
	}
	return nil
}

// Until waits until the job is placed and done returns true. It refreshes Alloc before each call.
func (j *Job) Until(ctx context.Context, what string, done func() (bool, error)) error {
	return Until(ctx, j.ID+" "+what, func() (bool, error) {
		c := j.agent.Client()
		if j.Alloc == nil {
			list, _, err := c.Jobs().Allocations(j.ID, false, nil)
			if err != nil || len(list) == 0 {
				return false, err
			}
			j.Alloc = &api.Allocation{ID: list[0].ID}
		}
		alloc, _, err := c.Allocations().Info(j.Alloc.ID, nil)
		if err != nil {
			return false, err
		}
		j.Alloc = alloc
		return done()
	})
}

// Wait waits for a status. If the allocation ends with another one, Wait prints its events and fails.
func (j *Job) Wait(ctx context.Context, status string) error {
	return j.Until(ctx, "to be "+status, func() (bool, error) {
		if now := j.Alloc.ClientStatus; now != status && j.Alloc.ClientTerminalStatus() {
			j.Show()
			return false, fmt.Errorf("job %s is %s", j.ID, now)
		}
		return j.Alloc.ClientStatus == status, nil
	})
}

// Events are those of the only task.
func (j *Job) Events() []*api.TaskEvent {
	for _, s := range j.Alloc.TaskStates {
		return s.Events
	}
	return nil
}

// Show prints the events except those of each task's setup.
func (j *Job) Show() {
	for _, e := range j.Events() {
		switch e.Type {
		case api.TaskReceived, api.TaskSetup, api.TaskStarted:
		default:
			Note("  %s  %s: %s", time.Unix(0, e.Time).Format("15:04:05.0"), e.Type, nomad.Plain(e.DisplayMessage))
		}
	}
}

// Output returns the task's standard output. The job must be placed.
func (j *Job) Output(ctx context.Context) (string, error) {
	logs := filepath.Join(j.agent.DataDir(), "alloc", j.Alloc.ID, "alloc", "logs")
	out, err := j.agent.Exec(ctx, "sh", "-c", `cat "$1"/*.stdout.*`, "sh", logs)
	if err != nil {
		return "", fmt.Errorf("failed to read the task's output: %w: %s", err, out)
	}
	return out, nil
}
