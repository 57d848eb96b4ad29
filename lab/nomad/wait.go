// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// NodeHealthy waits until the agent leads, its node is registered and ready, and the named drivers are detected and
// healthy. An open port implies none of that. The limit is that of testcontainers.WithWaitStrategy, a minute, or of
// WithWaitStrategyAndDeadline.
func NodeHealthy(drivers ...string) wait.Strategy {
	return wait.ForNop(func(ctx context.Context, target wait.StrategyTarget) error {
		return nodeHealthy(ctx, target, drivers)
	})
}

func nodeHealthy(ctx context.Context, target wait.StrategyTarget, drivers []string) error {
	info, err := target.Inspect(ctx)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(info.Config.Labels[portLabel])
	if err != nil {
		return fmt.Errorf("nomad port: %w", err)
	}
	client, err := NewClient(fmt.Sprintf("http://127.0.0.1:%d", port))
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
		_, err = Health(ctx, client, drivers...)
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
