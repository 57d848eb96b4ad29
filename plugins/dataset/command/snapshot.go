// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

var snapshotCommand = command{
	name: "snapshot", help: "make a snapshot of a volume",
	usage: "VOLUME NAME", least: 2, most: 2,
	about: `Makes a snapshot. VOLUME is an id, a name, or NAMESPACE/NAME. "zfs destroy" removes the snapshot.`,
	run: func(ctx context.Context, s *session, args []string) error {
		ctx, v, unlock, err := s.locked(ctx, args[0])
		if err != nil {
			return err
		}
		defer unlock()
		name := args[1]
		if err := v.engine.Snapshot(ctx, v.Name, name); err != nil {
			return fmt.Errorf("failed to make snapshot %q of volume %s: %w", name, v, err)
		}
		return s.answer(snapshot{v.key(), name}, func(w io.Writer) { fmt.Fprintln(w, name) })
	},
}

// snapshot is the output of snapshot and rollback, as JSON.
type snapshot struct {
	Volume   string `json:"volume"` // the volume's id
	Snapshot string `json:"snapshot"`
}

var rollbackCommand = command{
	name: "rollback", help: "bring a volume back to its last snapshot",
	usage: "VOLUME SNAPSHOT", least: 2, most: 2,
	about: `Restores the files of a volume to its last snapshot. All later changes are lost.
A rollback is refused while a process uses the volume, or while an allocation claims it (if Nomad
responds; set NOMAD_ADDR and NOMAD_TOKEN): stop the job first. It is also refused if later
snapshots exist: "zfs destroy" removes them.`,
	run: func(ctx context.Context, s *session, args []string) error {
		ctx, v, unlock, err := s.locked(ctx, args[0])
		if err != nil {
			return err
		}
		defer unlock()
		name := args[1]
		err = claimed(ctx, v)
		if err == nil {
			err = v.engine.Rollback(ctx, v.Name, name)
		}
		switch {
		case errors.Is(err, engine.ErrInUse):
			return fmt.Errorf("failed to roll back volume %s to %q: %w; stop the job that uses the volume first", v, name, err)
		case err != nil:
			return fmt.Errorf("failed to roll back volume %s to %q: %w; see: zfs list -t snapshot -r %s/%s", v, name, err,
				v.Root, v.Name)
		}
		s.say("Volume %s was rolled back to %s. All later changes are lost.", v, name)
		return s.answer(snapshot{v.key(), name}, func(io.Writer) {})
	},
}

// claimed returns ErrInUse if Nomad reports a running or pending allocation with the volume, and nil if Nomad does not
// respond. In that case only the kernel's check remains, which misses allocations that aren't using the volume now.
func claimed(ctx context.Context, v found) error {
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	options := (&api.QueryOptions{Namespace: v.Tags[engine.Namespace]}).WithContext(ctx)
	volume, _, err := client.HostVolumes().Get(v.key(), options)
	if err != nil {
		return nil
	}
	for _, a := range volume.Allocations {
		if a.ClientStatus == api.AllocClientStatusRunning || a.ClientStatus == api.AllocClientStatusPending {
			return fmt.Errorf("dataset %s is %w by allocation %s of job %q", v.Name, engine.ErrInUse, a.ID, a.JobID)
		}
	}
	return nil
}
