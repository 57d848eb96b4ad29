// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

var snapshotCommand = command{
	name: "snapshot", help: "make a snapshot of a volume, or remove one",
	usage: "VOLUME [NAME] [-remove]", least: 1, most: 2,
	about: `Makes a snapshot. Without a name it has that of the time (UTC), which is printed.
VOLUME is an id, a name, or NAMESPACE/NAME. With "-remove", "before-*" names all that
begin so.`,
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		remove := f.Bool("remove", false, "remove the snapshot")
		return func(ctx context.Context, s *session, args []string) error {
			v, err := s.volume(ctx, args[0])
			if err != nil {
				return err
			}
			v, unlock, err := v.locked(ctx)
			if err != nil {
				return err
			}
			defer unlock()
			if *remove {
				if len(args) < 2 {
					return errors.New("usage: snapshot VOLUME NAME -remove")
				}
				removed, err := v.removeSnapshots(ctx, args[1])
				return errors.Join(err, s.answer(snapshots{Volume: v.id(), Removed: removed}, func(io.Writer) {}))
			}
			name := time.Now().UTC().Format(stampForm)
			if len(args) == 2 {
				name = args[1]
			}
			if err := v.snapshot(ctx, name); err != nil {
				return err
			}
			return s.answer(snapshots{Volume: v.id(), Snapshot: name}, func(w io.Writer) { fmt.Fprintln(w, name) })
		}
	},
}

// snapshots is what was made or removed, as JSON.
type snapshots struct {
	Volume   string   `json:"volume"` // its id
	Snapshot string   `json:"snapshot,omitempty"`
	Removed  []string `json:"removed,omitempty"`
}

// stampForm is the form of the time in the name of a snapshot, in UTC.
const stampForm = "20060102T150405.000Z"

// snapshot makes one for a person. The caller holds the lock.
func (f found) snapshot(ctx context.Context, name string) error {
	if err := policy.CheckSnapshot(name); err != nil {
		return err
	}
	if err := f.engine.Snapshot(ctx, f.Name, name); err != nil {
		return fmt.Errorf("snapshot %q of volume %s was not made: %w", name, f, err)
	}
	return nil
}

// removeSnapshots returns the names of those that it has removed, also with an error.
func (f found) removeSnapshots(ctx context.Context, name string) (removed []string, err error) {
	var remove []engine.Snapshot
	if prefix, several := strings.CutSuffix(name, "*"); several {
		all, err := f.engine.Snapshots(ctx, f.Name)
		if err != nil {
			return nil, err
		}
		remove = slices.DeleteFunc(all, func(s engine.Snapshot) bool { return !strings.HasPrefix(s.Name, prefix) })
	} else {
		s, _, err := f.snapshotOf(ctx, name)
		if err != nil {
			return nil, err
		}
		remove = append(remove, s)
	}
	for _, s := range remove {
		if err := f.engine.DestroySnapshot(ctx, f.Name, s.Name); err != nil {
			return removed, fmt.Errorf("snapshot %q of volume %s was not removed: %w", s.Name, f, err)
		}
		removed = append(removed, s.Name)
	}
	return removed, nil
}

var rollbackCommand = command{
	name: "rollback", help: "bring a volume back to a snapshot",
	usage: "VOLUME SNAPSHOT [-discard-later]", least: 2, most: 2,
	about: `Brings the files of a volume back to what they were. What was written since is lost.
It is refused while a process uses the volume: stop the job first.`,
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		discard := f.Bool("discard-later", false, "lose the snapshots that were made later")
		return func(ctx context.Context, s *session, args []string) error {
			v, err := s.volume(ctx, args[0])
			if err != nil {
				return err
			}
			v, unlock, err := v.locked(ctx)
			if err != nil {
				return err
			}
			defer unlock()
			return s.rollback(ctx, v, args[1], *discard)
		}
	},
}

func (s *session) rollback(ctx context.Context, v found, name string, discard bool) error {
	to, later, err := v.snapshotOf(ctx, name)
	if err != nil {
		return err
	}
	err = v.engine.Rollback(ctx, v.Name, name, discard)
	if errors.Is(err, engine.ErrLaterSnapshots) {
		return fmt.Errorf("volume %s was not rolled back to %q, since these snapshots are later and would be lost: "+
			"%s. Name the last one, or add -discard-later", v, name, strings.Join(snapshotNames(later), ", "))
	}
	if errors.Is(err, engine.ErrInUse) {
		return fmt.Errorf("volume %s was not rolled back to %q: stop the job that uses it first: %w", v, name, err)
	}
	if err != nil {
		return fmt.Errorf("volume %s was not rolled back to %q: %w", v, name, err)
	}
	if _, err := v.engine.Mount(ctx, v.Name, v.Path); err != nil {
		return err
	}
	left, err := v.engine.Snapshots(ctx, v.Name)
	if err != nil {
		return err
	}
	lost := snapshotNames(missing(later, left))
	s.say("Volume %s is as it was at %s. What was written since is lost.", v, when(to.Created))
	if len(lost) > 0 {
		s.say("Lost are also the snapshots %s.", strings.Join(lost, ", "))
	}
	return s.answer(snapshots{Volume: v.id(), Snapshot: name, Removed: lost}, func(io.Writer) {})
}

func snapshotNames(all []engine.Snapshot) (names []string) {
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names
}

// missing is what of some snapshots is not among others.
func missing(all, left []engine.Snapshot) (gone []engine.Snapshot) {
	has := map[string]bool{}
	for _, s := range left {
		has[s.Name] = true
	}
	for _, s := range all {
		if !has[s.Name] {
			gone = append(gone, s)
		}
	}
	return gone
}

// when is a time for a person.
func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
