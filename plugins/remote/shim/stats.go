// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// stats is endpoint.Endpoint's Stats: from the cgroup, and what that has not from /proc.
func (s *Shim) stats(ctx context.Context, name string) (*endpoint.Usage, error) {
	o, err := s.look(ctx, name)
	if err != nil {
		return nil, err
	}
	if o.State != endpoint.Running && o.State != endpoint.Released {
		return nil, fmt.Errorf("%w: the task does not run", endpoint.ErrGone)
	}
	st, err := s.store.Load(o.TaskID)
	if err != nil {
		return nil, err
	}
	g, err := st.Group.Stats()
	if err != nil {
		return nil, err
	}
	u := &endpoint.Usage{At: time.Now().UnixNano()}
	var user, system uint64
	var rss int64
	for _, p := range st.Processes() {
		u.Processes++
		user, system, rss = user+p.UTime, system+p.STime, rss+max(0, p.RSS)
	}
	seconds := func(v cgroup.Value, ticks uint64) float64 {
		if v.Known {
			return float64(v.N) / 1e9
		}
		return float64(ticks) / task.ClockTick
	}
	bytes := func(v cgroup.Value) int64 {
		if !v.Known {
			return -1
		}
		return int64(v.N)
	}
	u.UserCPU, u.SystemCPU = seconds(g.CPUUser, user), seconds(g.CPUSystem, system)
	u.CPU = seconds(g.CPUTotal, user+system)
	u.RSS, u.Cache, u.Swap = bytes(g.RSS), bytes(g.Cache), bytes(g.Swap)
	if u.RSS < 0 {
		u.RSS = rss * int64(os.Getpagesize())
	}
	if u.Memory = bytes(g.Usage); u.Memory < 0 {
		u.Memory = u.RSS
	}
	u.MaxMemory, u.Throttled, u.ThrottleNS = bytes(g.UsagePeak), bytes(g.ThrottledPeriods), bytes(g.ThrottledTime)
	u.OOMKills = -1
	if st.Group.Has("memory") {
		if kills, err := st.Group.OOMKills(); err == nil {
			u.OOMKills = int64(kills - st.OOMKills)
		}
	}
	return u, nil
}
