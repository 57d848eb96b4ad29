package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Stop stops a job, and waits until its tasks have ended.
func (l *Lab) Stop(ctx context.Context, job string) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	namespace, err := l.namespace(ctx, a.Client(), job)
	if err != nil {
		return err
	}
	end := l.step(ctx, "Stopping job %s", job)
	err = stopJob(ctx, a.Client(), namespace, job)
	end(err, "its tasks have ended")
	if err == nil && job == simJob {
		l.say("The stick is pulled out. Plug it in again with: %s lab:up", mage)
	}
	return err
}

func stopJob(ctx context.Context, c *api.Client, namespace, job string) error {
	w := (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
	if _, _, err := c.Jobs().Deregister(job, false, w); err != nil {
		return fmt.Errorf("failed to stop job %s: %s", job, plain(err))
	}
	for {
		left, err := unended(ctx, c, namespace, job)
		if err != nil || len(left) == 0 {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("failed to wait for the end of job %s: %w", job, err)
		}
	}
}

// unended are the allocations of a job that have not ended.
func unended(ctx context.Context, c *api.Client, namespace, job string) (ids []string, err error) {
	list, _, err := c.Jobs().Allocations(job, false, (&api.QueryOptions{Namespace: namespace}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("failed to list the allocations of job %s: %w", job, err)
	}
	for _, a := range list {
		if !terminal(a.ClientStatus) {
			ids = append(ids, a.ID)
		}
	}
	return ids, nil
}

// namespace is that of a job, or an error that tells which jobs there are.
func (l *Lab) namespace(ctx context.Context, c *api.Client, job string) (string, error) {
	list, _, err := c.Jobs().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
	if err != nil {
		return "", fmt.Errorf("failed to list jobs: %w", err)
	}
	var ids []string
	for _, j := range list {
		if j.ID == job {
			return j.Namespace, nil
		}
		ids = append(ids, j.ID)
	}
	if len(ids) == 0 {
		return "", fmt.Errorf("there is no job %q, nor any other", job)
	}
	return "", fmt.Errorf("there is no job %q; there are: %s", job, joined(ids))
}
