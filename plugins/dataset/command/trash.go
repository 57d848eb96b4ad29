// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

var trashCommand = command{
	name: "trash", help: "show, restore or destroy deleted datasets: trash list|restore|empty",
	usage: "list | restore NAME | empty [NAME …]", least: 1, most: 1000,
	about: `"list" shows the deleted datasets in the trash, and how long each is kept.
"restore" prints the specification that makes Nomad create a new volume from a deleted one, and
keeps the dataset until then: trash restore NAME | nomad volume create -
"empty" destroys the named datasets, or all that were not restored. It can't be undone.
NAME is an ID of "trash list", or the name of a volume if it is unique.`,
	run: func(ctx context.Context, s *session, args []string) error {
		names := args[1:]
		if args[0] == "list" && len(names) == 0 {
			return s.list(ctx, func(d engine.Dataset) bool { return engine.InTrash(d.Name) })
		}
		in, hidden, err := s.datasets(ctx, func(f found) bool { return engine.InTrash(f.Name) })
		if err != nil {
			return err
		}
		var chosen []found
		for _, name := range names {
			d, err := resolve(in, name, hidden)
			if err != nil {
				return err
			}
			chosen = append(chosen, d)
		}
		switch {
		case args[0] == "restore" && len(names) == 1:
			return s.restore(ctx, chosen[0])
		case args[0] == "empty" && len(names) == 0:
			chosen = slices.DeleteFunc(in, func(f found) bool { return f.Waits() })
			return errors.Join(s.empty(ctx, chosen), hidden)
		case args[0] == "empty":
			return s.empty(ctx, chosen)
		}
		return errors.New("usage: trash list | restore NAME | empty [NAME …]")
	},
}

// restore prints the specification of a new volume with the files of a deleted one, which Nomad no longer knows. It
// marks the deleted volume's dataset as waiting. The dataset stays in the trash until Nomad creates the new volume.
func (s *session) restore(ctx context.Context, d found) error {
	if d.Tags[engine.Kind] != "volume" {
		return fmt.Errorf("slot %s can't be restored, because only volumes can: copy its files from dataset %s",
			d.key(), d.Name)
	}
	ctx, unlock, err := d.engine.Lock(ctx, d.key(), lockTime)
	if err != nil {
		return err
	}
	defer unlock()
	tags := engine.Tags{engine.Adopt: rand.Text(), engine.Kept: "", engine.Passed: ""}
	if err := d.engine.Tag(ctx, d.Name, tags); err != nil { // fails if d has left the trash since it was listed
		return fmt.Errorf("failed to restore %s: %w", d.key(), err)
	}
	s.say("Volume %s can be restored. Pass the specification to \"nomad volume create -\".", d.title())
	d.Tags = d.Tags.With(tags)
	return s.specify(ctx, d)
}

func (s *session) empty(ctx context.Context, chosen []found) error {
	var failed error
	destroyed := []string{}
	for _, d := range chosen {
		err := d.destroy(ctx)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("failed to destroy %s: %w", d.key(), err))
			continue
		}
		s.say("Destroyed %s.", d.key())
		destroyed = append(destroyed, d.key())
	}
	return errors.Join(failed, s.answer(map[string][]string{"destroyed": destroyed}, func(io.Writer) {}))
}

func (f found) destroy(ctx context.Context) error {
	ctx, unlock, err := f.engine.Lock(ctx, f.key(), lockTime)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := f.engine.Get(ctx, f.Name)
	if err == nil && now.Tags[engine.Adopt] != f.Tags[engine.Adopt] {
		err = errors.New("it was restored in the meantime")
	}
	if err != nil {
		return err
	}
	return f.engine.Destroy(ctx, f.Name)
}
