// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/nomad/api"
)

// Snapshot makes the server write a Raft snapshot into its data_dir.
//
// It makes the agent's next start fast: the server then has its keyring from the snapshot before it leads. Without a
// snapshot it reads the keys from the log when it has begun to lead. It then refuses the client's first request, which
// comes at the same time, and the client waits 15 to 30 s before the next (client/client.go: registerRetryIntv,
// getAllocRetryIntv).
func Snapshot(ctx context.Context, c *api.Client) error {
	s, err := c.Operator().Snapshot((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("failed to take a snapshot: %w", err)
	}
	defer s.Close()
	if _, err := io.Copy(io.Discard, s); err != nil {
		return fmt.Errorf("failed to take a snapshot: %w", err)
	}
	return nil
}

// Signs returns nil once the server publishes its keys: it then has its keyring, and can register clients.
func Signs(ctx context.Context, c *api.Client) error {
	body, err := c.Raw().Response("/.well-known/jwks.json", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("the server has no keyring yet: %w", err)
	}
	defer body.Close()
	var set struct{ Keys []json.RawMessage }
	if err := json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&set); err != nil {
		return fmt.Errorf("failed to read the server's keys: %w", err)
	}
	if len(set.Keys) == 0 {
		return errors.New("the server has no keyring yet")
	}
	return nil
}
