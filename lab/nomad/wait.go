package nomad

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/outrider-dev/outrider/lab/internal/poll"
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
	var missing error
	err = poll.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		state, err := target.State(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			return false, fmt.Errorf("get state: %w", err)
		case err == nil && !state.Running:
			return false, fmt.Errorf("nomad exited with code %d", state.ExitCode)
		}
		_, err = Health(ctx, client, s.drivers...)
		if ctx.Err() == nil || missing == nil {
			missing = err
		}
		return err == nil, nil
	})
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("%w: %w", err, missing)
	}
	return err
}
