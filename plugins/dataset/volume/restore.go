// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// restore brings a volume back. What the operator's file says counts for a change only.
func (c *call) restore(ctx context.Context, rec *record) (*Volume, error) {
	if rec.Namespace != c.Namespace || rec.Name != c.Name {
		return nil, fmt.Errorf("volume %s is %q of namespace %q, not %q of %q", c.ID, rec.Name, rec.Namespace, c.Name,
			c.Namespace)
	}
	f, fileErr := policy.Load(c.file)
	if fileErr != nil {
		f = nil
	}
	e, err := rec.engine(f)
	if err != nil {
		return nil, err
	}
	d, err := e.Find(ctx, rec.dataset(), rec.identity())
	if errors.Is(err, engine.ErrNotFound) {
		return nil, fmt.Errorf("dataset %s below %s, which is this volume, is gone: bring it back, or delete the volume",
			rec.dataset(), rec.Root)
	}
	if err != nil {
		return nil, reason(ctx, e, err)
	}
	if changed := c.changes(rec); len(changed) > 0 {
		if fileErr != nil {
			return nil, fmt.Errorf("the volume can't be changed (%s): %w", changed[0], fileErr)
		}
		if d, err = c.change(ctx, e, f, rec, d); err != nil {
			return nil, err
		}
	} else if fileErr != nil {
		c.logf("volume %s is there, but a new one would be refused: %v", c.ID, fileErr)
	}
	if d.Tags[engine.Trashed] != "" { // a delete was killed
		if err := e.Keep(ctx, d.Name); err != nil {
			return nil, err
		}
	}
	return c.mount(ctx, e, rec, d)
}

// reason is why a dataset is not available, in better words where Check has some.
func reason(ctx context.Context, e *engine.Engine, err error) error {
	if errors.Is(err, engine.ErrUnavailable) {
		return cmp.Or(e.Check(ctx), err)
	}
	return err
}

func (c *call) mount(ctx context.Context, e *engine.Engine, rec *record, d engine.Dataset) (*Volume, error) {
	path, err := e.Mount(ctx, rec.dataset(), c.dir)
	if err != nil {
		return nil, err
	}
	return &Volume{path, d.Limits.Data}, nil
}

// changes are the names of what the request has otherwise than the record. A capacity that
// is not asked for stays as it is.
func (c *call) changes(rec *record) (names []string) {
	if (c.Min != rec.Min || c.Max != rec.Max) && (c.Min != 0 || c.Max != 0) {
		names = append(names, "capacity")
	}
	for name, value := range c.Parameters {
		if former, there := rec.Parameters[name]; !there || former != value {
			names = append(names, name)
		}
	}
	for name := range rec.Parameters {
		if _, there := c.Parameters[name]; !there && !slices.Contains(origins, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// origins are the parameters that mean nothing once the volume is there.
var origins = []string{"clone_from", engine.Adopt}

// changeable are the parameters that a volume may get anew.
var changeable = []string{"capacity", "uid", "gid", "mode"}

// change makes the volume what is asked for now. If it is killed it can be called again: the
// record is the last thing that changes.
func (c *call) change(
	ctx context.Context, e *engine.Engine, f *policy.File, rec *record, d engine.Dataset,
) (engine.Dataset, error) {
	changed := c.changes(rec)
	next := *rec
	next.Request = c.Request
	if c.Min == 0 && c.Max == 0 {
		next.Min, next.Max = rec.Min, rec.Max
	}
	if !slices.Equal(changed, []string{"capacity"}) {
		for _, name := range changed {
			if !slices.Contains(changeable, name) {
				return d, fmt.Errorf("the parameter %s of a volume can't be changed from %q to %q: make a new volume", name,
					rec.Parameters[name], c.Parameters[name])
			}
		}
		asked := c.Request
		asked.Min, asked.Max = 0, 0 // its capacity is checked below, if it changes
		v, err := f.Volume(asked)
		if err != nil {
			return d, err
		}
		next.Owner = v.Owner
	}
	limits := d.Limits
	if slices.Contains(changed, "capacity") {
		var err error
		if limits, err = f.Limits(rec.Class, c.Min, c.Max); err != nil {
			return d, err
		}
	}
	if limits != d.Limits {
		if err := e.Resize(ctx, d.Name, limits); err != nil {
			return d, err
		}
		at("resized")
	}
	if next.Owner != rec.Owner {
		path, err := e.Mount(ctx, d.Name, c.dir)
		if err != nil {
			return d, err
		}
		if err := engine.SetOwner(path, next.Owner.UID, next.Owner.GID, next.Owner.Mode); err != nil {
			return d, err
		}
	}
	next.Parameters = maps.Clone(c.Parameters)
	d.Limits = limits
	return d, c.records.save(&next)
}
