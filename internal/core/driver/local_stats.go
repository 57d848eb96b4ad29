package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/client/lib/cpustats"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// TaskStats is part of drivers.DriverPlugin: a value at once, then one an
// interval, until the task has ended or ctx has.
func (d *Driver) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	h, err := d.handle(id)
	if err != nil {
		return nil, err
	}
	exited, err := h.executor.Exited(id)
	if err != nil {
		return nil, drivers.ErrTaskNotFound
	}
	if interval <= 0 {
		// Recoverable is what Nomad tells errors apart by; this one is not
		return nil, structs.NewRecoverableError(errors.New("interval of statistics is not positive"), false)
	}
	d.mu.Lock()
	compute := d.compute
	d.mu.Unlock()
	usages := make(chan *drivers.TaskResourceUsage)
	go func() {
		defer close(usages)
		s := newSampler(h, compute)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			var u *drivers.TaskResourceUsage
			d.sampling.run(func() { u = d.measure(ctx, s) })
			if u != nil {
				select {
				case usages <- u:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-tick.C:
			case <-exited:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return usages, nil
}

// measure takes one sample, nil where there is nothing to be had.
func (d *Driver) measure(ctx context.Context, s *sampler) *drivers.TaskResourceUsage {
	if kills, err := s.handle.current().Group.OOMKills(); err == nil {
		d.noticeOOM(s.handle, kills)
	}
	u, err := s.sample()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.logger.Warn("failed to read statistics", "task", s.handle.config.ID, "error", err)
		}
		return nil
	}
	if i, ok := optional[StatsReporter](d); ok {
		if err := i.ReportStats(ctx, s.handle.run(), u); err != nil {
			d.logger.Warn("failed to read the driver's own statistics", "task", s.handle.config.ID, "error", err)
		}
	}
	return u
}

// worker is one goroutine that does the work of many: their stacks stay small,
// and a thousand tasks are not measured all at the same time.
type worker struct {
	ctx  context.Context
	work chan func()
}

// newWorker starts the goroutine; ctx ends it.
func newWorker(ctx context.Context) worker {
	w := worker{ctx: ctx, work: make(chan func())}
	go func() {
		for {
			select {
			case f := <-w.work:
				f()
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

// run returns when f has, or without it when the worker has ended.
func (w worker) run(f func()) {
	done := make(chan struct{})
	select {
	case w.work <- func() { defer close(done); f() }:
		<-done
	case <-w.ctx.Done():
	}
}

// sampler turns the kernel's counters into Nomad's percentages, which need two
// samples.
type sampler struct {
	handle              *handle
	compute             cpustats.Compute
	total, user, system *cpustats.Tracker
	pids                map[int]*pidSampler
}

type pidSampler struct {
	start               uint64
	total, user, system *cpustats.Tracker
}

func newSampler(h *handle, c cpustats.Compute) *sampler {
	return &sampler{
		handle: h, compute: c, total: cpustats.New(c), user: cpustats.New(c), system: cpustats.New(c),
		pids: map[int]*pidSampler{},
	}
}

// clockTick is USER_HZ, in which /proc counts; Linux has had 100 on every
// architecture that Nomad runs on since there is a USER_HZ.
const clockTick = 100

func (s *sampler) sample() (*drivers.TaskResourceUsage, error) {
	group := s.handle.current().Group
	stats, err := group.Stats()
	if err != nil {
		return nil, err
	}
	pids, sum := s.perPID(group)
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

func (s *sampler) perPID(group cgroup.Group) (map[string]*drivers.ResourceUsage, usage) {
	var sum usage
	out := map[string]*drivers.ResourceUsage{}
	seen := map[int]bool{}
	for _, st := range s.processes(group) {
		seen[st.PID] = true
		p := s.pids[st.PID]
		if p == nil || p.start != st.Start {
			p = &pidSampler{start: st.Start, total: cpustats.New(s.compute), user: cpustats.New(s.compute), system: cpustats.New(s.compute)}
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
func (s *sampler) processes(group cgroup.Group) []task.Stat {
	if group.Mode != cgroup.V1 && group.Mode != cgroup.V2 {
		return task.Tree(s.handle.current().Identity)
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
