// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"fmt"
	"io/fs"
	"path/filepath"
)

// Value is a number that may be unknown, because the kernel is too old or the controller is missing.
type Value struct {
	N     uint64
	Known bool
}

// Stats is the usage that the kernel charges to a group and those below it. Totals start when the group is made and
// include exited processes. In the groups that Nomad makes on v1, UsagePeak covers all runs of the task.
type Stats struct {
	CPUTotal  Value // ns of processor time
	CPUUser   Value // ns
	CPUSystem Value // ns

	ThrottledPeriods Value // scheduling periods in which a bandwidth limit stopped the group
	ThrottledTime    Value // ns

	RSS       Value // bytes of anonymous memory
	Cache     Value // bytes of page cache
	Swap      Value // bytes
	Usage     Value // bytes of all memory, with page cache and kernel memory
	UsagePeak Value // bytes; on v2 since Linux 5.19
}

// Stats reads the statistics. If the group was removed, the error is fs.ErrNotExist. A Group of mode None returns only
// unknown values and no error.
func (g Group) Stats() (Stats, error) {
	var s Stats
	r := reader{}
	switch g.Mode {
	case V2:
		cpu := r.keys(g.Path, "cpu.stat") // has the CPU times even without the cpu controller
		s.CPUTotal = scale(cpu("usage_usec"), 1000)
		s.CPUUser = scale(cpu("user_usec"), 1000)
		s.CPUSystem = scale(cpu("system_usec"), 1000)
		s.ThrottledPeriods = cpu("nr_throttled")
		s.ThrottledTime = scale(cpu("throttled_usec"), 1000)
		if g.Has("memory") {
			memory := r.keys(g.Path, "memory.stat")
			s.RSS, s.Cache = memory("anon"), memory("file")
			s.Swap = r.number(g.Path, "memory.swap.current")
			s.Usage = r.number(g.Path, "memory.current")
			s.UsagePeak = r.number(g.Path, "memory.peak")
		}
	case V1:
		if dir := g.V1["cpuacct"]; dir != "" {
			s.CPUTotal = r.number(dir, "cpuacct.usage")
			s.CPUUser = r.number(dir, "cpuacct.usage_user")
			s.CPUSystem = r.number(dir, "cpuacct.usage_sys")
		}
		if dir := g.V1["cpu"]; dir != "" {
			cpu := r.keys(dir, "cpu.stat")
			s.ThrottledPeriods, s.ThrottledTime = cpu("nr_throttled"), cpu("throttled_time")
		}
		if dir := g.V1["memory"]; dir != "" {
			memory := r.keys(dir, "memory.stat")
			s.RSS, s.Cache, s.Swap = memory("total_rss"), memory("total_cache"), memory("total_swap")
			s.Usage = r.number(dir, "memory.usage_in_bytes")
			s.UsagePeak = r.number(dir, "memory.max_usage_in_bytes")
		}
	default:
		return s, nil
	}
	if r.err == nil && !r.found {
		r.err = fs.ErrNotExist
	}
	if r.err != nil {
		return Stats{}, fmt.Errorf("failed to read cgroup statistics: %w", r.err)
	}
	return s, nil
}

// reader reads interface files until a read fails. A missing file is not a failure; its values are unknown.
type reader struct {
	err   error
	found bool
}

func (r *reader) number(dir, file string) Value {
	if r.err != nil {
		return Value{}
	}
	n, err := readUint(filepath.Join(dir, file))
	return Value{N: n, Known: r.record(err)}
}

func (r *reader) keys(dir, file string) func(key string) Value {
	var keys map[string]uint64
	if r.err == nil {
		var err error
		keys, err = readKeys(filepath.Join(dir, file))
		r.record(err)
	}
	return func(key string) Value {
		n, ok := keys[key]
		return Value{N: n, Known: ok}
	}
}

func (r *reader) record(err error) (known bool) {
	switch {
	case err == nil:
		r.found = true
		return true
	case !IsMissing(err):
		r.err = err
	}
	return false
}

func scale(v Value, factor uint64) Value {
	v.N *= factor
	return v
}
