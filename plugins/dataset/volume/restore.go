// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// restore mounts an existing volume and answers. It needs the operator's file only to change the capacity.
func (c *call) restore(ctx context.Context, rec *record) error {
	if rec.Namespace != c.Namespace || rec.Name != c.Name {
		return fmt.Errorf("volume %s is %q in namespace %q, not %q in %q", c.ID, rec.Name, rec.Namespace, c.Name,
			c.Namespace)
	}
	if err := c.same(rec); err != nil {
		return err
	}
	f, fileErr := policy.Load(c.file)
	e := rec.engine(f)
	d, err := e.Find(ctx, rec.dataset(), rec.identity())
	if errors.Is(err, engine.ErrNotFound) {
		return fmt.Errorf("the volume's dataset %s below %s is missing: restore it, or delete the volume",
			rec.dataset(), rec.Root)
	}
	if err != nil {
		return err
	}
	switch {
	case c.grows(rec) && fileErr != nil:
		return fmt.Errorf("failed to change the capacity of the volume: %w", fileErr)
	case c.grows(rec):
		if err := c.resize(ctx, e, f, rec, &d); err != nil {
			return err
		}
	case fileErr != nil:
		c.logf("mounting volume %s, although new volumes can't be made: %v", c.ID, fileErr)
	}
	return c.mount(ctx, e, rec, d)
}

func (c *call) mount(ctx context.Context, e *engine.Engine, rec *record, d engine.Dataset) error {
	path, err := e.Mount(ctx, rec.dataset(), c.dir)
	if err != nil {
		return err
	}
	return c.answer(&Volume{path, d.Limits.Data})
}

// grows reports whether the request changes the capacity in the record. A request without a capacity changes nothing.
func (c *call) grows(rec *record) bool {
	return (c.Min != rec.Min || c.Max != rec.Max) && (c.Min != 0 || c.Max != 0)
}

// same returns an error if the parameters of the request differ from the record's. The request may omit the parameters
// for the initial content: clone_from and adopt.
func (c *call) same(rec *record) error {
	all := map[string]string{}
	maps.Copy(all, rec.Parameters)
	maps.DeleteFunc(all, func(name, _ string) bool { return name == "clone_from" || name == engine.Adopt })
	maps.Copy(all, c.Parameters)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		former, now := rec.Parameters[name], c.Parameters[name]
		if former != now {
			return fmt.Errorf("the parameter %s of a volume can't be changed from %q to %q: make a new volume", name,
				former, now)
		}
	}
	return nil
}

// resize sets the requested capacity, and then saves it in the record. If it is killed, it can be called again.
func (c *call) resize(ctx context.Context, e *engine.Engine, f *policy.File, rec *record, d *engine.Dataset) error {
	limits, err := f.Limits(rec.Class, c.Min, c.Max)
	if err != nil {
		return err
	}
	if limits != d.Limits {
		if err := e.Resize(ctx, d.Name, limits); err != nil {
			return err
		}
		at("resized")
		d.Limits = limits
	}
	next := *rec
	next.Min, next.Max = c.Min, c.Max
	return c.records.save(&next)
}
