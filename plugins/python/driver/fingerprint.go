// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"time"

	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/driver"
)

// tidyEvery is how often the cache is tidied, besides after each build.
const tidyEvery = 10 * time.Minute

// Fingerprint returns the node's interpreters, and tidies the cache: an agent calls it as long as it uses the driver.
func (d *instance) Fingerprint(ctx context.Context) (map[string]*pstructs.Attribute, error) {
	uv, err := d.uv.Find(ctx)
	var may interface{ Temporary() bool }
	if err != nil && ctx.Err() == nil && !errors.As(err, &may) {
		return nil, driver.Undetected(err.Error())
	}
	if err != nil {
		return nil, err
	}
	found, err := d.uv.Pythons(ctx, "")
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, driver.Undetected("no Python interpreter that tasks can run is on this node: install one, or name its " +
			"directory with interpreters in the plugin's config")
	}
	all := map[string]*pstructs.Attribute{
		"versions":     pstructs.NewStringAttribute(versionsOf(found)),
		"default":      pstructs.NewStringAttribute(found[0].Version),
		"default.path": pstructs.NewStringAttribute(found[0].Path),
		"uv.version":   pstructs.NewStringAttribute(uv.Version),
	}
	d.tidy(ctx)
	return all, nil
}

// tidy tidies the cache if it is due, without waiting for it: a disk may be slow.
func (d *instance) tidy(ctx context.Context) {
	if !d.tidying.TryLock() {
		return
	}
	if grown := d.grown.Swap(false); !grown && time.Since(d.tidied) < tidyEvery {
		d.tidying.Unlock()
		return
	}
	d.tidied = time.Now()
	go func() { // ends with ctx
		defer d.tidying.Unlock()
		if err := d.cache.Tidy(ctx); err != nil && ctx.Err() == nil {
			d.logger.Warn("failed to tidy the cache of environments", "error", err)
		}
	}()
}
