// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package usage measures the memory and the processor time of processes.
package usage

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Process is a process, with the memory and the processor time that it uses.
type Process struct {
	PID    int
	Args   []string
	Memory float64 // proportional set size (PSS), in bytes
	CPU    float64 // seconds of processor time, so far
}

// Of measures those processes for which counts returns true, sorted by PID. It omits processes that have ended.
func Of(ids []task.Identity, counts func(pid int, args []string) bool) ([]Process, error) {
	var list []Process
	slices.SortFunc(ids, func(a, b task.Identity) int { return cmp.Compare(a.PID, b.PID) })
	for _, id := range ids {
		p, err := procfs.NewProc(id.PID)
		m := Process{PID: id.PID}
		if err == nil {
			m.Args, err = p.CmdLine()
		}
		if err == nil && (len(m.Args) == 0 || !counts(m.PID, m.Args)) { // a zombie has no arguments
			continue
		}
		var memory procfs.ProcSMapsRollup
		if err == nil {
			memory, err = p.ProcSMapsRollup()
		}
		var stat procfs.ProcStat
		if err == nil {
			stat, err = p.Stat()
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, err
		}
		m.Memory, m.CPU = float64(memory.Pss), stat.CPUTime()
		list = append(list, m)
	}
	return list, nil
}

// Total returns the sum of some processes' usage.
func Total(list []Process) (memory, cpu float64) {
	for _, p := range list {
		memory += p.Memory
		cpu += p.CPU
	}
	return memory, cpu
}
