// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// patience is how long a delete waits for processes that use the volume. Nomad's server allows the
// deletion of a volume whose job was purged, even while its tasks run.
var patience = 30 * time.Second

// delete removes a volume according to the policy of its class. A missing volume is not an error.
func (c *call) delete(ctx context.Context) error {
	ctx, unlock, err := locks.Lock(ctx, c.ID, limit)
	if err != nil {
		return err
	}
	defer unlock()
	f, fileErr := policy.Load(c.file)
	if fileErr != nil {
		c.logf("deleting volume %s by the policy recorded at its creation, but keeping its data: %v", c.ID, fileErr)
	}
	rec, err := c.records.read(c.ID)
	switch {
	case err != nil:
		return err
	case rec == nil: // the command "check" reports datasets without a record
		return nil
	case rec.Unfinished:
		return c.undo(ctx, rec)
	}
	if c.Namespace != "" && c.Namespace != rec.Namespace {
		return fmt.Errorf("volume %s is in namespace %q, not %q", c.ID, rec.Namespace, c.Namespace)
	}
	if f != nil {
		if class, there := f.Classes[rec.Class]; there {
			rec.OnDelete, rec.TrashTTL = class.OnDelete, class.TrashTTL.Duration()
		}
	} else if rec.OnDelete == "destroy" {
		rec.OnDelete = "retain" // the operator may have changed the policy since the volume was created
	}
	e := rec.engine(f)
	switch _, err := e.Find(ctx, rec.dataset(), rec.identity()); {
	case err == nil:
		if err := c.remove(ctx, e, rec); err != nil {
			return err
		}
	case !errors.Is(err, engine.ErrNotFound):
		return err
	}
	at("removed")
	c.removeDir(c.ID)
	return c.records.remove(c.ID)
}

// remove removes the dataset according to the policy. While it is in use, remove retries, for up to 30 s (patience).
func (c *call) remove(ctx context.Context, e *engine.Engine, rec *record) error {
	at("unused")
	for started := time.Now(); ; {
		err := c.discard(ctx, e, rec)
		if !errors.Is(err, engine.ErrInUse) {
			return err
		}
		if time.Since(started) > patience {
			return fmt.Errorf("the volume is still in use after %s: %w; stop the job that uses it", patience, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *call) discard(ctx context.Context, e *engine.Engine, rec *record) error {
	switch rec.OnDelete {
	case "destroy":
		return e.Destroy(ctx, rec.dataset())
	case "retain":
		return e.Discard(ctx, rec.dataset(), 0)
	}
	return e.Discard(ctx, rec.dataset(), rec.TrashTTL)
}
