// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Limits are the resource limits of one task. The zero value of a field leaves that limit unchanged. A limit is not set
// if the group lacks its controller ([Group.Has]).
type Limits struct {
	// MemoryMax is the hard limit in bytes, above which the task is OOM-killed; -1 means no limit.
	MemoryMax int64 `json:"memory_max,omitempty"`

	// MemoryLow is the memory in bytes that the kernel tries to leave to the task when the machine runs out of memory. It
	// is the job's "memory" if the job also sets "memory_max". The file is memory.low on v2 and memory.soft_limit_in_bytes
	// on v1.
	MemoryLow int64 `json:"memory_low,omitempty"`

	// CPUShares is the task's share of the CPU in the units of v1: 2 to 262144, where 1024 is a group's default.
	CPUShares uint64 `json:"cpu_shares,omitempty"`

	// CPUQuota is the processor time, in µs, that the task may use in each period of CPUPeriod µs: cpu.max on
	// v2 and cpu.cfs_quota_us on v1. 0 means no limit; the kernel's minimum is 1000.
	CPUQuota int64 `json:"cpu_quota,omitempty"`

	// Cpuset lists the cores reserved for the task, such as "0-2,7".
	Cpuset string `json:"cpuset,omitempty"`

	// PidsMax is the maximum number of processes and threads.
	PidsMax int64 `json:"pids_max,omitempty"`

	// Swappiness is written to memory.swappiness on v1; 0 disables swap. It is ignored on v2 and by kernels without that
	// file.
	Swappiness *uint64 `json:"swappiness,omitempty"`

	// IOWeight is the task's share of disks, 1 to 10000 (100 is a group's default). It works on disks with the BFQ
	// scheduler and, on v2, with io.cost.
	IOWeight uint64 `json:"io_weight,omitempty"`

	// IOMax limits the use of disks.
	IOMax []IOMax `json:"io_max,omitempty"`

	// SwapMax is the maximum swap in bytes, in addition to MemoryMax. It is written to memory.swap.max on v2, and ignored
	// on v1 and by kernels without that file.
	SwapMax *uint64 `json:"swap_max,omitempty"`
}

// Check rejects values that no kernel accepts. The error names the limit.
func (l Limits) Check() error {
	switch {
	case l.MemoryMax < -1:
		return fmt.Errorf("memory limit %d is negative", l.MemoryMax)
	case l.MemoryLow < 0:
		return fmt.Errorf("memory reservation %d is negative", l.MemoryLow)
	case l.PidsMax < 0:
		return fmt.Errorf("process limit %d is negative", l.PidsMax)
	}
	return nil
}

// Demanded reports whether any limit is set that the task must not run without.
func (l Limits) Demanded() bool { return l.PidsMax > 0 || l.CPUQuota > 0 || len(l.Optional()) > 0 }

// CPUPeriod is the kernel's default period of CPUQuota, in µs.
const CPUPeriod = 100_000

// limit writes the limits to the groups, which must exist.
func (g Group) limit(l Limits) error {
	memory, shares := strconv.FormatInt(l.MemoryMax, 10), l.CPUShares
	quota := strconv.FormatInt(l.CPUQuota, 10)
	var swappiness, swap string
	if g.Mode == V2 {
		shares = weight(shares)
		quota += " " + strconv.Itoa(CPUPeriod)
		if l.MemoryMax == -1 {
			memory = "max"
		}
	} else if l.Cpuset != "" && g.Has("cpuset") && filepath.Base(g.V1["cpuset"]) != filepath.Base(g.V1["cpu"]) {
		return fmt.Errorf("failed to set cores %q: other tasks share the cpuset cgroup %s", l.Cpuset, g.V1["cpuset"])
	}
	if l.Swappiness != nil {
		swappiness = strconv.FormatUint(*l.Swappiness, 10)
	}
	if l.SwapMax != nil {
		swap = strconv.FormatUint(*l.SwapMax, 10)
	}
	for _, row := range []struct {
		wanted         bool
		controller     string
		fileV1, fileV2 string
		value          string
	}{
		{l.MemoryMax != 0, "memory", "memory.limit_in_bytes", "memory.max", memory},
		{l.MemoryLow != 0, "memory", "memory.soft_limit_in_bytes", "memory.low", strconv.FormatInt(l.MemoryLow, 10)},
		{l.CPUShares != 0, "cpu", "cpu.shares", "cpu.weight", strconv.FormatUint(shares, 10)},
		{l.CPUQuota != 0, "cpu", "cpu.cfs_quota_us", "cpu.max", quota},
		{l.Cpuset != "", "cpuset", "cpuset.cpus", "cpuset.cpus", l.Cpuset},
		{l.Swappiness != nil, "memory", swappinessFile, "", swappiness},
		{l.SwapMax != nil, "memory", "", swapFile, swap},
		{l.PidsMax != 0, "pids", "pids.max", "pids.max", strconv.FormatInt(l.PidsMax, 10)},
	} {
		dir, file := g.V1[row.controller], row.fileV1
		if g.Mode == V2 {
			dir, file = g.Path, row.fileV2
		}
		if !row.wanted || file == "" || !g.Has(row.controller) {
			continue
		}
		err := writeFile(filepath.Join(dir, file), row.value)
		if (file == swappinessFile || file == swapFile) && (IsMissing(err) || errors.Is(err, unix.EOPNOTSUPP)) {
			continue // the kernel has no swap
		}
		if err != nil {
			return err
		}
	}
	return g.limitIO(l)
}

const (
	swappinessFile = "memory.swappiness"
	swapFile       = "memory.swap.max"
)

// weight converts cpu.shares of v1 to cpu.weight of v2 with the curve of crun and runc, which maps the minimum, the
// default and the maximum of both: 2 -> 1, 1024 -> 100, 262144 -> 10000. Nomad's drivers use the same curve, so tasks
// of all drivers share the CPU fairly.
func weight(shares uint64) uint64 {
	if shares <= 2 {
		return 1
	}
	if shares >= 262144 {
		return 10000
	}
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}
