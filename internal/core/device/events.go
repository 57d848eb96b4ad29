// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"time"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
)

// The delay before Events is called again after an error begins with firstListen and doubles up to lastListen.
const (
	firstListen = time.Second
	lastListen  = time.Minute
)

// listen calls an instance's Events until ctx ends.
func (p *Server) listen(ctx context.Context, events func(context.Context, func()) error) {
	failing := once{log: p.logger.Error}
	wait := firstListen
	kick := func() {
		p.kick.Kick()
		p.sweeps.Kick()
	}
	for {
		started := time.Now()
		err := fingerprint.Guard(func() error { return events(ctx, kick) })
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("the event stream ended")
		}
		failing.failed("failed to listen for events (scans still find devices)", err)
		if time.Since(started) > lastListen {
			wait = firstListen
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, lastListen)
	}
}
