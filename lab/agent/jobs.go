package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// newClient is an API client of one agent, whatever NOMAD_ADDR and NOMAD_TOKEN say.
func newClient(address string) (*api.Client, error) {
	c, err := api.NewClient(&api.Config{Address: address, Region: "global"})
	if err != nil {
		return nil, fmt.Errorf("failed to make an API client: %w", err)
	}
	c.SetSecretID("")
	return c, nil
}

// stopJobs stops every job and waits until no task of theirs runs, at most for
// the longest usual kill_timeout.
func stopJobs(ctx context.Context, c *api.Client) error {
	q := (&api.QueryOptions{Namespace: "*"}).WithContext(ctx)
	jobs, _, err := c.Jobs().List(q)
	if err != nil {
		return fmt.Errorf("failed to list jobs: %w", err)
	}
	for _, j := range jobs {
		w := (&api.WriteOptions{Namespace: j.Namespace}).WithContext(ctx)
		if _, _, err := c.Jobs().Deregister(j.ID, false, w); err != nil {
			return fmt.Errorf("failed to stop job %s: %w", j.ID, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		allocs, _, err := c.Allocations().List(q)
		if err != nil {
			return fmt.Errorf("failed to list allocations: %w", err)
		}
		running := 0
		for _, a := range allocs {
			if !terminal(a.ClientStatus) {
				running++
			}
		}
		if running == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // whatever still runs is killed with the agent
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func terminal(clientStatus string) bool {
	switch clientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}
