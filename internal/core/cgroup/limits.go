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

// Limits of one task. The zero value of a field leaves that limit as it is.
// A limit whose controller the group does not have ([Group.Has]) is not set.
type Limits struct {
	// MemoryMax in bytes: the task is OOM-killed above it; -1 for no limit.
	MemoryMax int64 `json:"memory_max,omitempty"`

	// MemoryLow in bytes: what is left to the task when the machine runs out of
	// memory; "memory" where the job says "memory_max" too. v2: memory.low, v1:
	// memory.soft_limit_in_bytes.
	MemoryLow int64 `json:"memory_low,omitempty"`

	// CPUShares in the units of v1, 2 to 262144, where 1024 is a group's default.
	CPUShares uint64 `json:"cpu_shares,omitempty"`

	// Cpuset are the cores of the task alone, as "0-2,7".
	Cpuset string `json:"cpuset,omitempty"`

	// PidsMax is how many processes and threads there may be.
	PidsMax int64 `json:"pids_max,omitempty"`

	// Swappiness is memory.swappiness of v1; raw_exec sets 0. Kernels without
	// it are left alone, as is v2, which has no such file.
	Swappiness *uint64 `json:"swappiness,omitempty"`
}

// Check refuses what no kernel would take, with a reason that names the limit.
func (l Limits) Check() error {
	switch {
	case l.MemoryMax < -1:
		return fmt.Errorf("memory limit %d is negative", l.MemoryMax)
	case l.MemoryLow < 0:
		return fmt.Errorf("memory reservation %d is negative", l.MemoryLow)
	case l.PidsMax < 0:
		return fmt.Errorf("limit of processes %d is negative", l.PidsMax)
	}
	return nil
}

// limit writes the limits to the groups, which exist.
func (g Group) limit(l Limits) error {
	w := writer{g: g}
	if g.Mode == V2 {
		w.set("memory", "memory.max", l.MemoryMax != 0, bytesOr(l.MemoryMax, "max"))
		w.set("memory", "memory.low", l.MemoryLow != 0, bytesOr(l.MemoryLow, ""))
		w.set("cpu", "cpu.weight", l.CPUShares != 0, strconv.FormatUint(weight(l.CPUShares), 10))
		w.set("cpuset", "cpuset.cpus", l.Cpuset != "", l.Cpuset)
	} else {
		if l.Cpuset != "" && g.Has("cpuset") && filepath.Base(g.V1["cpuset"]) != filepath.Base(g.V1["cpu"]) {
			return fmt.Errorf("failed to set cores %q: cpuset group %s is shared with other tasks", l.Cpuset, g.V1["cpuset"])
		}
		w.set("memory", "memory.limit_in_bytes", l.MemoryMax != 0, bytesOr(l.MemoryMax, "-1"))
		w.set("memory", "memory.soft_limit_in_bytes", l.MemoryLow != 0, bytesOr(l.MemoryLow, ""))
		w.set("cpu", "cpu.shares", l.CPUShares != 0, strconv.FormatUint(l.CPUShares, 10))
		w.set("cpuset", "cpuset.cpus", l.Cpuset != "", l.Cpuset)
		if l.Swappiness != nil && w.err == nil {
			w.set("memory", "memory.swappiness", true, strconv.FormatUint(*l.Swappiness, 10))
			if missing(w.err) || errors.Is(w.err, unix.EOPNOTSUPP) {
				w.err = nil // a kernel without swap
			}
		}
	}
	w.set("pids", "pids.max", l.PidsMax != 0, strconv.FormatInt(l.PidsMax, 10))
	return w.err
}

// writer writes limits until one fails.
type writer struct {
	g   Group
	err error
}

func (w *writer) set(controller, file string, wanted bool, value string) {
	if w.err != nil || !wanted || !w.g.Has(controller) {
		return
	}
	dir := w.g.Path
	if w.g.Mode == V1 {
		dir = w.g.V1[controller]
	}
	w.err = writeFile(filepath.Join(dir, file), value)
}

// bytesOr is n in digits, and unlimited where n is -1.
func bytesOr(n int64, unlimited string) string {
	if n == -1 {
		return unlimited
	}
	return strconv.FormatInt(n, 10)
}

// weight converts cpu.shares of v1 to cpu.weight of v2 with the curve of crun
// and runc, which goes through the least, the default and the greatest of both:
// 2 -> 1, 1024 -> 100, 262144 -> 10000. Nomad's drivers use the same, so tasks of
// all drivers share the processor fairly.
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
