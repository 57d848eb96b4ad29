// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Stats is part of endpoint.Endpoint.
func (e *Endpoint) Stats(ctx context.Context, name string) (*endpoint.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	// by its name: it is one at a time, and the record of the object is not needed
	r, err := e.api.ContainerStats(ctx, name, client.ContainerStatsOptions{})
	if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) {
		return nil, endpoint.ErrGone
	}
	if err != nil {
		return nil, failed("read statistics", err)
	}
	defer r.Body.Close()
	var s container.StatsResponse
	err = json.NewDecoder(r.Body).Decode(&s)
	// so Podman says that it does not run, and so Docker
	if errors.Is(err, io.EOF) || err == nil && s.CPUStats.CPUUsage.TotalUsage == 0 && s.MemoryStats.Usage == 0 {
		return nil, endpoint.ErrGone
	}
	if err != nil {
		return nil, failed("read statistics", err)
	}
	return usage(&s), nil
}

func usage(s *container.StatsResponse) *endpoint.Usage {
	cpu, mem := s.CPUStats, s.MemoryStats
	// names of cgroup v1, and of v2
	of := func(names ...string) int64 {
		for _, n := range names {
			if v, ok := mem.Stats[n]; ok {
				return int64(v)
			}
		}
		return -1
	}
	u := &endpoint.Usage{
		At:        s.Read.UnixNano(),
		CPU:       seconds(cpu.CPUUsage.TotalUsage),
		UserCPU:   seconds(cpu.CPUUsage.UsageInUsermode),
		SystemCPU: seconds(cpu.CPUUsage.UsageInKernelmode),
		Memory:    int64(mem.Usage),
		RSS:       of("total_rss", "anon"),
		Cache:     of("total_cache", "file"),
		Swap:      of("total_swap"),
		MaxMemory: -1, Throttled: int64(cpu.ThrottlingData.ThrottledPeriods),
		ThrottleNS: int64(cpu.ThrottlingData.ThrottledTime),
		OOMKills:   -1,
		Processes:  int(s.PidsStats.Current),
	}
	if mem.MaxUsage > 0 {
		u.MaxMemory = int64(mem.MaxUsage)
	}
	return u
}

func seconds(ns uint64) float64 { return float64(ns) / float64(time.Second) }
