// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// locks is an engine for locking a volume before its root is known: all roots share one directory of locks.
var locks = &engine.Engine{Locks: engine.LockDir}

// create makes the volume. If it exists, as when an agent starts, create mounts it and applies a changed capacity.
func (c *call) create(ctx context.Context) error {
	ctx, unlock, err := locks.Lock(ctx, c.ID, limit)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := c.records.read(c.ID)
	switch {
	case err != nil:
		return err
	case rec != nil && !rec.Unfinished:
		return c.restore(ctx, rec)
	case rec != nil: // a previous call was killed
		if err := c.undo(ctx, rec); err != nil {
			return err
		}
	}
	return c.make(ctx)
}

// make makes a new volume according to the operator's file, and answers Nomad. If that fails, it removes the volume.
func (c *call) make(ctx context.Context) error {
	if strings.Contains(c.Name, "/") || policy.IsID(strings.ToLower(c.Name)) { // commands take NAMESPACE/NAME, or an id
		return fmt.Errorf("%q can't be the name of a volume: use a name without / that does not look like an id", c.Name)
	}
	f, err := policy.Load(c.file)
	if err != nil {
		return err
	}
	v, err := f.Volume(c.Request)
	if err != nil {
		return err
	}
	v.Spec.Dir = c.dir
	c.sweep(ctx, f.Classes[v.Class].Root)
	rec := newRecord(c.Request, f, v)
	e := rec.engine(f)
	if err := e.Check(ctx); err != nil {
		return fmt.Errorf("class %q can't be used now: %w", v.Class, err)
	}
	d, err := e.Find(ctx, rec.dataset(), rec.identity())
	if err == nil { // the dataset is complete, only its record is missing
		rec.Unfinished = false
		if err := c.records.save(rec); err != nil {
			return err
		}
		return c.mount(ctx, e, rec, d)
	}
	if !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	var source string
	err = nil
	switch {
	case v.Clone != nil:
		source, err = c.source(ctx, e, v)
	case v.Adopt != "":
		d, err = c.adoptable(ctx, e, v)
		source = d.Name
	}
	if err != nil {
		return err
	}
	if err := c.records.save(rec); err != nil {
		return err
	}
	at("written")
	path, err := c.fill(ctx, e, rec, v, source)
	if err == nil && v.Adopt == "" {
		at("filled")
		err = engine.SetOwner(path, v.Owner.UID, v.Owner.GID, v.Owner.Mode)
	}
	if err == nil {
		at("owned")
		err = c.answer(&Volume{path, v.Spec.Data}, func() error {
			rec.Unfinished = false
			err := c.records.save(rec)
			at("ready")
			return err
		})
	}
	if err != nil && !rec.Unfinished { // Nomad got no answer: if undo is killed, the next create must repeat it
		rec.Unfinished = true
		err = errors.Join(err, c.records.save(rec))
	}
	if err == nil || errors.Is(err, engine.ErrUnavailable) { // if a program hangs, the next create undoes its work
		return err
	}
	if undoErr := c.undo(context.WithoutCancel(ctx), rec); undoErr != nil {
		c.logf("failed to remove leftovers of volume %s, which its next create removes: %v", c.ID, undoErr)
	}
	return err
}

// fill makes the dataset: empty, as a clone, or by adopting an existing dataset.
func (c *call) fill(
	ctx context.Context, e *engine.Engine, rec *record, v *policy.Volume, source string,
) (string, error) {
	switch {
	case source == "":
		return e.Create(ctx, rec.dataset(), v.Spec)
	case v.Adopt != "":
		return c.adopt(ctx, e, rec, v, source)
	}
	path, err := e.Clone(ctx, source, v.Clone.Snapshot, rec.dataset(), v.Spec)
	if err != nil {
		return "", fmt.Errorf("a volume of %d bytes can't be a clone of %s@%s: %w", v.Spec.Data, v.Clone.Volume,
			v.Clone.Snapshot, err)
	}
	return path, nil
}

// source returns the name of the dataset to clone. It finds only volumes in the namespace of the request, because jobs
// in that namespace can read them anyway.
func (c *call) source(ctx context.Context, e *engine.Engine, v *policy.Volume) (string, error) {
	all, err := e.List(ctx)
	if err != nil {
		return "", err
	}
	for _, tag := range []string{engine.ID, engine.Volume} { // an id wins over a name
		var found []string
		for _, d := range all {
			if d.IsVolume() && d.Tags[engine.Namespace] == c.Namespace && d.Tags[tag] == v.Clone.Volume {
				found = append(found, d.Name)
			}
		}
		switch len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			return "", fmt.Errorf("%d volumes are named %q: clone one by its id", len(found), v.Clone.Volume)
		}
	}
	return "", fmt.Errorf("found no volume %q to clone in namespace %q and class %q on this node: use its name or id",
		v.Clone.Volume, c.Namespace, v.Class)
}

// undo removes the dataset and the record of an unfinished create. No task has used the dataset.
func (c *call) undo(ctx context.Context, rec *record) error {
	e := rec.engine(nil)
	name := rec.dataset()
	switch d, err := e.Find(ctx, name, rec.identity()); {
	case errors.Is(err, engine.ErrForeign):
	case err == nil && d.Tags[engine.Adopt] != "":
		if err := giveBack(ctx, e, name, d); err != nil {
			return fmt.Errorf("failed to undo the adoption of the dataset: %w", err)
		}
	case err != nil && !errors.Is(err, engine.ErrNotFound):
		return err
	default:
		if err := e.Destroy(ctx, name); err != nil {
			return fmt.Errorf("failed to remove leftovers of a previous create: %w", err)
		}
	}
	c.removeDir(rec.ID)
	return c.records.remove(rec.ID)
}

// sweep removes the leftovers of killed create calls for other volumes, below one root. Nomad retries with a new id,
// and makes no further call with the previous one.
func (c *call) sweep(ctx context.Context, root string) {
	for _, id := range c.records.ids() {
		locked, unlock, err := locks.Lock(ctx, id, 0)
		if err != nil {
			continue // another process is working on this volume
		}
		rec, err := c.records.read(id)
		switch {
		case err != nil:
		case rec == nil:
			err = c.records.remove(id)
		case rec.Unfinished && rec.Root == root:
			err = c.undo(locked, rec)
		}
		unlock()
		if err != nil {
			c.logf("failed to remove leftovers of an interrupted create of volume %s: %v", id, err)
		}
	}
}

// removeDir removes the empty mount point of a volume.
func (c *call) removeDir(id string) { _ = os.Remove(filepath.Join(filepath.Dir(c.dir), id)) }
