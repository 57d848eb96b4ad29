// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/client/lib/cpustats"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Stats is part of Sampler.
func (t *localTask) Stats(context.Context) (*drivers.TaskResourceUsage, error) {
	topology := t.engine.topology() // first: the engine's lock is never taken under a task's
	t.mu.Lock()
	if t.sampler == nil {
		t.sampler = newSampler(topology)
	}
	s, group, main := t.sampler, t.state.Group, t.state.Identity
	t.mu.Unlock()
	if kills, err := group.OOMKills(); err == nil {
		t.reportOOM(kills)
	}
	u, err := s.sample(group, main)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the cgroup is gone
	}
	return u, err
}

func (l *local) topology() cpustats.Compute {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.compute
}

// sampler turns the kernel's counters into Nomad's percentages, which need two
// samples.
type sampler struct {
	compute             cpustats.Compute
	total, user, system *cpustats.Tracker
	pids                map[int]*pidSampler
}

type pidSampler struct {
	start               uint64
	total, user, system *cpustats.Tracker
}

func newSampler(c cpustats.Compute) *sampler {
	return &sampler{
		compute: c, total: cpustats.New(c), user: cpustats.New(c), system: cpustats.New(c),
		pids: map[int]*pidSampler{},
	}
}

// clockTick is USER_HZ, in which /proc counts; Linux has had 100 on every
// architecture that Nomad runs on since there is a USER_HZ.
const clockTick = 100

func (s *sampler) sample(group cgroup.Group, main task.Identity) (*drivers.TaskResourceUsage, error) {
	stats, err := group.Stats()
	if err != nil {
		return nil, err
	}
	pids, sum := s.perPID(group, main)
	cpu, mem := &drivers.CpuStats{}, &drivers.MemoryStats{}
	measure := func(v cgroup.Value, field *uint64, names *[]string, name string) {
		if v.Known {
			*field = v.N
			*names = append(*names, name)
		}
	}
	if !stats.CPUTotal.Known { // no cgroup: the sum of what runs now
		stats.CPUTotal = cgroup.Value{N: sum.cpuUser + sum.cpuSystem, Known: true}
		stats.CPUUser = cgroup.Value{N: sum.cpuUser, Known: true}
		stats.CPUSystem = cgroup.Value{N: sum.cpuSystem, Known: true}
	}
	if !stats.RSS.Known {
		stats.RSS = cgroup.Value{N: sum.rss, Known: true}
	}
	cpu.Percent = s.total.Percent(float64(stats.CPUTotal.N))
	cpu.TotalTicks = ticks(s.total, cpu.Percent, s.compute)
	cpu.Measured = append(cpu.Measured, "Percent", "Total Ticks")
	if stats.CPUUser.Known && stats.CPUSystem.Known {
		cpu.UserMode = s.user.Percent(float64(stats.CPUUser.N))
		cpu.SystemMode = s.system.Percent(float64(stats.CPUSystem.N))
		cpu.Measured = append(cpu.Measured, "User Mode", "System Mode")
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
		Pids:          pids,
	}, nil
}

// ticks is the share of the machine's MHz; without a topology there is none.
func ticks(t *cpustats.Tracker, percent float64, c cpustats.Compute) float64 {
	if c.NumCores == 0 {
		return 0
	}
	return t.TicksConsumed(percent)
}

type usage struct{ cpuUser, cpuSystem, rss uint64 } // ns, ns, bytes

func (s *sampler) perPID(group cgroup.Group, main task.Identity) (map[string]*drivers.ResourceUsage, usage) {
	var sum usage
	out := map[string]*drivers.ResourceUsage{}
	seen := map[int]bool{}
	for _, st := range processes(group, main) {
		seen[st.PID] = true
		p := s.pids[st.PID]
		if p == nil || p.start != st.Start {
			p = &pidSampler{
				start: st.Start, total: cpustats.New(s.compute), user: cpustats.New(s.compute), system: cpustats.New(s.compute),
			}
			s.pids[st.PID] = p
		}
		u := usage{
			cpuUser:   st.UTime * uint64(time.Second/clockTick),
			cpuSystem: st.STime * uint64(time.Second/clockTick),
			rss:       uint64(max(0, st.RSS)) * uint64(os.Getpagesize()),
		}
		sum.cpuUser += u.cpuUser
		sum.cpuSystem += u.cpuSystem
		sum.rss += u.rss
		percent := p.total.Percent(float64(u.cpuUser + u.cpuSystem))
		out[strconv.Itoa(st.PID)] = &drivers.ResourceUsage{
			CpuStats: &drivers.CpuStats{
				Percent: percent, TotalTicks: ticks(p.total, percent, s.compute),
				UserMode: p.user.Percent(float64(u.cpuUser)), SystemMode: p.system.Percent(float64(u.cpuSystem)),
				Measured: []string{"Percent", "Total Ticks", "User Mode", "System Mode"},
			},
			MemoryStats: &drivers.MemoryStats{RSS: u.rss, Measured: []string{"RSS"}},
		}
	}
	for pid := range s.pids {
		if !seen[pid] {
			delete(s.pids, pid)
		}
	}
	return out, sum
}

// processes are those of the task's cgroup, or without one the main process and
// what is below it.
func processes(group cgroup.Group, main task.Identity) []task.Stat {
	if group.Mode != cgroup.V1 && group.Mode != cgroup.V2 {
		return task.Tree(main)
	}
	pids, err := group.Procs()
	if err != nil {
		return nil
	}
	var stats []task.Stat
	for _, pid := range pids {
		if st, err := task.ReadStat(pid); err == nil {
			stats = append(stats, st)
		}
	}
	return stats
}
