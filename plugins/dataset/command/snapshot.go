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
	about: `Makes a snapshot. VOLUME is an id, a name, or NAMESPACE/NAME. "zfs destroy" removes it.`,
	run: func(ctx context.Context, s *session, args []string) error {
		v, unlock, err := s.locked(ctx, args[0])
		if err != nil {
			return err
		}
		defer unlock()
		name := args[1]
		if err := v.engine.Snapshot(ctx, v.Name, name); err != nil {
			return fmt.Errorf("snapshot %q of volume %s was not made: %w", name, v, err)
		}
		return s.answer(snapshot{v.key(), name}, func(w io.Writer) { fmt.Fprintln(w, name) })
	},
}

// snapshot is what was made or rolled back to, as JSON.
type snapshot struct {
	Volume   string `json:"volume"` // its id
	Snapshot string `json:"snapshot"`
}

var rollbackCommand = command{
	name: "rollback", help: "bring a volume back to its last snapshot",
	usage: "VOLUME SNAPSHOT", least: 2, most: 2,
	about: `Brings the files of a volume back to what they were. What was written since is lost.
It is refused while an allocation has the volume, if Nomad answers (NOMAD_ADDR, NOMAD_TOKEN),
or a process uses it: stop the job first. It is also refused if there are later snapshots:
"zfs destroy" removes them.`,
	run: func(ctx context.Context, s *session, args []string) error {
		v, unlock, err := s.locked(ctx, args[0])
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
			return fmt.Errorf("volume %s was not rolled back to %q: stop the job that uses it first: %w", v, name, err)
		case err != nil:
			return fmt.Errorf("volume %s was not rolled back to %q (see: zfs list -t snapshot -r %s/%s): %w", v, name, v.Root,
				v.Name, err)
		}
		s.say("Volume %s is as it was at %s. What was written since is lost.", v, name)
		return s.answer(snapshot{v.key(), name}, func(io.Writer) {})
	},
}

// claimed returns ErrInUse if Nomad says that an allocation has the volume. Where Nomad does not answer, the kernel
// alone is asked, which does not know of a volume that no process uses at the moment.
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
			return fmt.Errorf("dataset %s: %w: allocation %s of job %q has it", v.Name, engine.ErrInUse, a.ID, a.JobID)
		}
	}
	return nil
}
