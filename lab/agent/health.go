package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/lab/nomad"
)

// WaitHealthy waits until the agent leads itself, its node is ready, and every
// expected driver is fingerprinted healthy; it returns them. At the context's end,
// or when the agent has ended, the error says what was missing, and why.
func WaitHealthy(ctx context.Context, a Agent) ([]nomad.Driver, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 90*time.Second)
		defer cancel()
	}
	want := a.Info().Drivers()
	last := error(nil)
	for {
		if err := a.Alive(ctx); err != nil {
			return nil, err
		}
		got, err := nomad.Health(ctx, a.Client(), want...)
		if err == nil {
			return got, nomad.Snapshot(ctx, a.Client())
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			var log strings.Builder
			lctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			a.Logs(lctx, &log, false)
			return got, fmt.Errorf("%w\nthe end of the agent's log:\n%s", last, interesting(log.String(), 12))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
