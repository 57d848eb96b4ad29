// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/stats"
)

// graceEnv overrides how long a plugin waits for an agent to come back
// (time.ParseDuration), for tests.
const graceEnv = "OUTRIDER_ORPHAN_GRACE"

const defaultGrace = 30 * time.Second

// orphan ends a plugin that no agent will use again; its tasks go on without it.
// An agent that was killed leaves the plugin running and its successor
// re-attaches over the same socket, so the parent's death alone says nothing:
//
//   - the parent is gone and no agent was connected for the grace period: end.
//   - no agent connected within 4 grace periods: end. (go-plugin gives up on a
//     start after one minute; the parent may have died before it was looked at.)
//   - SIGTERM came: end as soon as no agent is connected.
//
// An agent keeps its connection open by the streams on it (Fingerprint), so that
// gRPC's idle timeout does not close it.
type orphan struct {
	logger hclog.Logger
	grace  time.Duration
	parent int // as this process started; its death gives us another (getppid(2))

	open        atomic.Int64  // connections
	connected   atomic.Bool   // ever
	terminating atomic.Bool   // to end
	changed     chan struct{} // holds one when any of these changed
}

var _ stats.Handler = (*orphan)(nil)

func newOrphan(logger hclog.Logger) *orphan {
	grace := defaultGrace
	if d, err := time.ParseDuration(os.Getenv(graceEnv)); err == nil && d > 0 {
		grace = d
	}
	return &orphan{logger: logger, grace: grace, parent: os.Getppid(), changed: make(chan struct{}, 1)}
}

// end makes the plugin end once no agent is connected.
func (o *orphan) end() {
	if !o.terminating.Swap(true) && o.open.Load() > 0 {
		o.logger.Info("SIGTERM received: ending when the agent has disconnected")
	}
	o.notify()
}

// watch calls stop once, when the plugin should end, or returns with ctx.
func (o *orphan) watch(ctx context.Context, stop func()) {
	tick := time.NewTicker(max(o.grace/6, 10*time.Millisecond))
	defer tick.Stop()
	started := time.Now()
	var alone time.Time // since when without connection and parent
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.changed:
		case <-tick.C:
		}
		var reason string
		switch {
		case o.open.Load() > 0:
			alone = time.Time{}
		case o.terminating.Load():
			reason = "asked to by SIGTERM"
		case !o.connected.Load() && time.Since(started) >= 4*o.grace:
			reason = "no agent ever connected"
		case os.Getppid() == o.parent:
			alone = time.Time{}
		case alone.IsZero():
			alone = time.Now()
		case time.Since(alone) >= o.grace:
			reason = "the agent is gone and none has re-attached"
		}
		if reason != "" {
			o.logger.Info("plugin ends, its tasks go on", "reason", reason)
			stop()
			return
		}
	}
}

func (o *orphan) notify() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// HandleConn counts the connections.
func (o *orphan) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		o.open.Add(1)
		o.connected.Store(true)
	case *stats.ConnEnd:
		o.open.Add(-1)
	}
	o.notify()
}

// The rest of stats.Handler is about single calls.
func (o *orphan) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (o *orphan) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (o *orphan) HandleRPC(context.Context, stats.RPCStats)                         {}
