package nomad

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/testcontainers/testcontainers-go/wait"
)

// NodeHealthyStrategy waits for a node that can run tasks of some drivers.
type NodeHealthyStrategy struct {
	drivers []string
	timeout time.Duration
}

var _ wait.Strategy = (*NodeHealthyStrategy)(nil)

// NodeHealthy waits until the agent leads, its node is registered and ready, and
// the named drivers are detected and healthy. An open port says none of that.
func NodeHealthy(drivers ...string) *NodeHealthyStrategy {
	return &NodeHealthyStrategy{drivers: drivers, timeout: time.Minute}
}

// WithTimeout replaces the limit of one minute.
func (s *NodeHealthyStrategy) WithTimeout(d time.Duration) *NodeHealthyStrategy {
	s.timeout = d
	return s
}

// Timeout implements wait.StrategyTimeout.
func (s *NodeHealthyStrategy) Timeout() *time.Duration { return &s.timeout }

// WaitUntilReady implements wait.Strategy.
func (s *NodeHealthyStrategy) WaitUntilReady(ctx context.Context, target wait.StrategyTarget) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	info, err := target.Inspect(ctx)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(info.Config.Labels[portLabel])
	if err != nil {
		return fmt.Errorf("nomad port: %w", err)
	}
	client, err := api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", port), Region: "global"})
	if err != nil {
		return err
	}
	last := error(nil)
	for {
		state, err := target.State(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("get state: %w", err)
		case err == nil && !state.Running:
			return fmt.Errorf("nomad exited with code %d", state.ExitCode)
		}
		if _, err = Health(ctx, client, s.drivers...); err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
