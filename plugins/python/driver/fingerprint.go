package driver

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/python/environment"
)

// tidyEvery is how often the cache is looked through.
const tidyEvery = 10 * time.Minute

// Fingerprint tells which interpreters there are, and keeps house: an agent asks for it
// as long as it uses the driver, and nobody else does.
func (d *pythonDriver) Fingerprint(ctx context.Context) (map[string]*pstructs.Attribute, error) {
	now := d.current()
	if now.users != nil {
		if err := now.users.Declare(); err != nil {
			return nil, err
		}
	}
	found, err := now.finder.Renew(ctx)
	if err != nil {
		return nil, err
	}
	rejected := now.finder.Rejected()
	d.logRejected(rejected, now.config.Interpreters != nil)
	if len(found) == 0 {
		words := "no Python interpreter that tasks can run is on this node: install one, or say with interpreters in the plugin's config where it is"
		if len(rejected) > 0 {
			words += " (" + strings.Join(firstOf(rejected, 4), "; ") + ")"
		}
		if len(now.finder.Late()) > 0 {
			return nil, errors.New(words) // there may be one
		}
		return nil, driver.Undetected(words)
	}
	all := attributes(found)
	if len(rejected) > 0 && now.config.Interpreters != nil {
		all["rejected"] = pstructs.NewStringAttribute(strings.Join(firstOf(rejected, 4), "; "))
	}
	if i, err := now.installers.renew(ctx, found); err == nil {
		all["installer"] = pstructs.NewStringAttribute(i.Name)
		all[i.Name+".version"] = pstructs.NewStringAttribute(i.Version)
	}
	d.tidy(ctx, now.cache)
	if size, _, err := now.cache.Usage(); err == nil {
		all["cache.size"] = pstructs.NewIntAttribute(roundUp(size>>20), pstructs.UnitMiB)
	}
	return all, nil
}

// logRejected tells the operator once why each of these is no interpreter for tasks: those of the configuration were
// meant to be.
func (d *pythonDriver) logRejected(rejected []string, configured bool) {
	d.mu.Lock()
	before := d.rejected
	d.rejected = rejected
	d.mu.Unlock()
	level := hclog.Debug
	if configured {
		level = hclog.Warn
	}
	for _, why := range rejected {
		if !slices.Contains(before, why) {
			d.logger.Log(level, "an interpreter can't be used", "reason", why)
		}
	}
}

// firstOf is a list, or its beginning and how many more there are: people read it.
func firstOf(list []string, most int) []string {
	if len(list) <= most {
		return list
	}
	return append(list[:most:most], fmt.Sprintf("and %d more", len(list)-most))
}

// roundUp is the next power of two: a node is not updated for each environment.
func roundUp(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return 1 << bits.Len64(uint64(n-1))
}

// tidySoon has the next fingerprint do so.
func (d *pythonDriver) tidySoon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tidied = time.Time{}
}

func (d *pythonDriver) tidy(ctx context.Context, cache *environment.Cache) {
	d.mu.Lock()
	due := time.Since(d.tidied) >= tidyEvery && d.tidying.TryLock() // a slow disk gets no more to do
	if due {
		d.tidied = time.Now()
	}
	d.mu.Unlock()
	if !due {
		return
	}
	go func() { // ends with the agent's question; the answer need not wait for it
		defer d.tidying.Unlock()
		if err := cache.Tidy(ctx); err != nil && ctx.Err() == nil {
			d.logger.Warn("failed to tidy the cache of environments", "error", err)
		}
	}()
}
