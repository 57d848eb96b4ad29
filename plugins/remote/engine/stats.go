// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

var _ driver.Sampler = (*remoteTask)(nil)

// Stats is part of driver.Sampler.
func (t *remoteTask) Stats(context.Context) (*drivers.TaskResourceUsage, error) {
	ref, foreign := t.owned()
	if foreign {
		return nil, nil
	}
	return t.samples.next(func() (*endpoint.Usage, error) {
		ctx, cancel := context.WithTimeout(t.ctx, sampleTime)
		defer cancel()
		return t.ep.Stats(ctx, ref.Name)
	}), nil
}

const (
	sampleTime  = 5 * time.Second // of an endpoint
	firstSample = time.Second     // of the caller, who samples all tasks one by one
)

// samples are those of a task. One is taken in the background while the last one is shown, so that no caller waits
// for the network.
type samples struct {
	mu    sync.Mutex
	taken chan struct{} // closed when the sample that is being taken is there, nil if none was ever taken
	last  *endpoint.Usage
	shown *drivers.TaskResourceUsage // nil if the endpoint did not answer
}

// next returns the sample that the last call began, nil if there is none, and begins another. The first
// call waits for its own, for a second.
func (s *samples) next(take func() (*endpoint.Usage, error)) *drivers.TaskResourceUsage {
	s.mu.Lock()
	first := s.taken == nil
	if !first {
		select {
		case <-s.taken:
		default: // it is still being taken
			s.mu.Unlock()
			return nil
		}
	}
	shown, taken := s.shown, make(chan struct{})
	s.taken = taken
	s.mu.Unlock()
	go func() {
		defer close(taken)
		u, err := take()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.shown = nil
		if err == nil {
			s.shown = usageOf(s.last, u)
			s.last = u
		}
	}()
	if !first {
		return shown
	}
	select {
	case <-taken:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.shown
	case <-time.After(firstSample):
		return nil
	}
}

// usageOf is a sample in Nomad's terms. Percentages are computed from the sample before, and are 0 without one.
// Ticks are left out: they need the endpoint's clock frequency, which is not known.
func usageOf(before, u *endpoint.Usage) *drivers.TaskResourceUsage {
	cpu, mem := &drivers.CpuStats{}, &drivers.MemoryStats{}
	percent := func(field *float64, name string, of func(*endpoint.Usage) float64) {
		if of(u) < 0 {
			return
		}
		cpu.Measured = append(cpu.Measured, name)
		if before == nil || of(before) < 0 {
			return
		}
		used, passed := of(u)-of(before), time.Duration(u.At-before.At).Seconds()
		if used > 0 && passed > 0 {
			*field = 100 * used / passed
		}
	}
	percent(&cpu.Percent, "Percent", func(u *endpoint.Usage) float64 { return u.CPU })
	percent(&cpu.UserMode, "User Mode", func(u *endpoint.Usage) float64 { return u.UserCPU })
	percent(&cpu.SystemMode, "System Mode", func(u *endpoint.Usage) float64 { return u.SystemCPU })
	number := func(n int64, field *uint64, names *[]string, name string) {
		if n >= 0 {
			*field = uint64(n)
			*names = append(*names, name)
		}
	}
	number(u.Throttled, &cpu.ThrottledPeriods, &cpu.Measured, "Throttled Periods")
	number(u.ThrottleNS, &cpu.ThrottledTime, &cpu.Measured, "Throttled Time")
	number(u.RSS, &mem.RSS, &mem.Measured, "RSS")
	number(u.Cache, &mem.Cache, &mem.Measured, "Cache")
	number(u.Swap, &mem.Swap, &mem.Measured, "Swap")
	number(u.Memory, &mem.Usage, &mem.Measured, "Usage")
	number(u.MaxMemory, &mem.MaxUsage, &mem.Measured, "Max Usage")
	return &drivers.TaskResourceUsage{
		ResourceUsage: &drivers.ResourceUsage{CpuStats: cpu, MemoryStats: mem},
		Timestamp:     time.Now().UTC().UnixNano(),
	}
}
