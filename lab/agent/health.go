// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// WaitHealthy waits until the agent's node is ready, each of its drivers is healthy or reports itself as undetected,
// and each host volume plugin is fingerprinted. Device plugins need no check: Nomad registers the node only after each
// has sent its first list. If ctx or the agent ends first, the error names the missing part and the reason. Each
// progress function is called with that error whenever the error changes.
func WaitHealthy(ctx context.Context, a Agent, progress ...func(string, ...any)) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
		defer cancel()
	}
	var (
		missing error
		again   = mend{patience: 2 * time.Second}
	)
	err := poll.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		err := a.Alive(ctx)
		if err != nil {
			return false, err
		}
		node, err := nomad.Self(ctx, a.Client(), a.DataDir())
		if err == nil {
			_, err = nomad.Health(node, a.Info().Drivers()...)
		}
		if err == nil {
			err = nomad.HostVolumePlugins(node, a.Info().HostVolumes...)
		}
		if err == nil {
			return true, settled(ctx, a)
		}
		if ctx.Err() == nil || missing == nil {
			if missing == nil || missing.Error() != err.Error() {
				for _, show := range progress {
					show("%v", err)
				}
			}
			missing = err
		}
		return false, again.look(ctx, a, err)
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w\nthe end of the agent's log:\n%s", missing, logTail(a))
	}
	return err
}

// mend restarts an agent that would otherwise become healthy late or never. There are two cases: the client of a new
// agent asked its server just before the server had its keyring, and would retry only after 15 to 30 s; or, on a busy
// or emulated machine, a host volume plugin did not answer Nomad's only fingerprint request within one second. A
// restart takes two seconds.
type mend struct {
	since    time.Time // when the fault was first seen
	patience time.Duration
}

func (m *mend) look(ctx context.Context, a Agent, missing error) error {
	early := false
	if errors.Is(missing, nomad.ErrNotRegistered) && !a.Info().Settled {
		leader, _ := a.Client().Status().Leader() // empty after an error, too
		early = leader != ""
	}
	if !early && !errors.Is(missing, nomad.ErrNoHostVolumePlugin) {
		return nil
	}
	if m.since.IsZero() {
		m.since = time.Now()
	}
	if time.Since(m.since) <= m.patience {
		return nil
	}
	if !a.Info().Settled {
		err := snapshot(ctx, a)
		if err != nil {
			return err
		}
	}
	m.since, m.patience = time.Time{}, 30*time.Second // after a restart, give a slow machine more time
	return errors.Join(a.Stop(ctx), a.Start(ctx))
}

// settled takes a snapshot and sets Info.Settled when the agent is first healthy, so its next start is quick.
func settled(ctx context.Context, a Agent) error {
	if a.Info().Settled {
		return nil
	}
	if err := snapshot(ctx, a); err != nil {
		return err
	}
	return a.settle()
}

// snapshot makes the server write a Raft snapshot into its data_dir.
//
// This makes the agent's next start fast, because the server then loads its keyring before it becomes the leader.
// Without a snapshot, the server reads the keys from the log after it has become the leader. Until it has them, it
// refuses the client's first request, and the client waits 15 to 30 s before the next one (client/client.go:
// registerRetryIntv, getAllocRetryIntv).
func snapshot(ctx context.Context, a Agent) error {
	content, err := a.Client().Operator().Snapshot((&api.QueryOptions{}).WithContext(ctx))
	if err == nil {
		defer content.Close()
		_, err = io.Copy(io.Discard, content)
	}
	if err != nil {
		return fmt.Errorf("failed to take a Raft snapshot of the agent: %w", err)
	}
	return nil
}
