// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/hashicorp/nomad/client/lib/cpustats"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Stats is part of Sampler.
func (t *localTask) Stats(context.Context) (*drivers.TaskResourceUsage, error) {
	t.mu.Lock()
	if t.sampler == nil {
		t.sampler = newSampler(t.engine.settings.Load().compute)
	}
	s, group, main := t.sampler, t.state.Group, t.state.Identity
	t.mu.Unlock()
	if kills, err := group.OOMKills(); err == nil {
		t.reportOOM(kills)
	}
	u, err := s.sample(group, main)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the cgroup was removed: no statistics, but no error
	}
	return u, err
}

// sampler measures a task. It turns the kernel's counters into Nomad's percentages, which need two samples.
type sampler struct {
	compute             cpustats.Compute
	total, user, system *cpustats.Tracker
}

func newSampler(c cpustats.Compute) *sampler {
	return &sampler{compute: c, total: cpustats.New(c), user: cpustats.New(c), system: cpustats.New(c)}
}

// measure converts counters in nanoseconds. It reports ticks only if the MHz of the cores are known.
func (s *sampler) measure(total, user, system cgroup.Value) *drivers.CpuStats {
	cpu := &drivers.CpuStats{Percent: s.total.Percent(float64(total.N)), Measured: []string{"Percent"}}
	if s.compute.NumCores > 0 {
		cpu.TotalTicks = s.total.TicksConsumed(cpu.Percent)
		cpu.Measured = append(cpu.Measured, "Total Ticks")
	}
	if user.Known && system.Known {
		cpu.UserMode, cpu.SystemMode = s.user.Percent(float64(user.N)), s.system.Percent(float64(system.N))
		cpu.Measured = append(cpu.Measured, "User Mode", "System Mode")
	}
	return cpu
}

func (s *sampler) sample(group cgroup.Group, main task.Identity) (*drivers.TaskResourceUsage, error) {
	stats, err := group.Stats()
	if err != nil {
		return nil, err
	}
	if !stats.CPUTotal.Known || !stats.RSS.Known { // use the sum over the running processes
		sum := usageOf(group, main)
		if !stats.CPUTotal.Known {
			stats.CPUTotal = known(sum.cpuUser + sum.cpuSystem)
			stats.CPUUser, stats.CPUSystem = known(sum.cpuUser), known(sum.cpuSystem)
		}
		if !stats.RSS.Known {
			stats.RSS = known(sum.rss)
		}
	}
	cpu, mem := s.measure(stats.CPUTotal, stats.CPUUser, stats.CPUSystem), &drivers.MemoryStats{}
	measure := func(v cgroup.Value, field *uint64, names *[]string, name string) {
		if v.Known {
			*field = v.N
			*names = append(*names, name)
		}
	}
	measure(stats.ThrottledPeriods, &cpu.ThrottledPeriods, &cpu.Measured, "Throttled Periods")
	measure(stats.ThrottledTime, &cpu.ThrottledTime, &cpu.Measured, "Throttled Time")
	measure(stats.RSS, &mem.RSS, &mem.Measured, "RSS")
	measure(stats.Cache, &mem.Cache, &mem.Measured, "Cache")
	measure(stats.Swap, &mem.Swap, &mem.Measured, "Swap")
	measure(stats.Usage, &mem.Usage, &mem.Measured, "Usage")
	measure(stats.UsagePeak, &mem.MaxUsage, &mem.Measured, "Max Usage")
	return &drivers.TaskResourceUsage{
		ResourceUsage: &drivers.ResourceUsage{CpuStats: cpu, MemoryStats: mem},
		Timestamp:     time.Now().UTC().UnixNano(),
	}, nil
}

func known(n uint64) cgroup.Value { return cgroup.Value{N: n, Known: true} }

type usage struct{ cpuUser, cpuSystem, rss uint64 } // ns, ns, bytes

// usageOf sums up the usage of a task's running processes.
func usageOf(group cgroup.Group, main task.Identity) (sum usage) {
	for _, st := range (&task.State{Group: group, Identity: main}).Processes() {
		sum.cpuUser += st.UTime * uint64(time.Second/task.ClockTick)
		sum.cpuSystem += st.STime * uint64(time.Second/task.ClockTick)
		sum.rss += uint64(max(0, st.RSS)) * uint64(os.Getpagesize())
	}
	return sum
}
