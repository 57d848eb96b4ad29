// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// processes lists the helper processes of tasks: the descendants of an agent (0 for none), and the supervisors with
// their state below dir, whose parent is init once their plugin has ended. It leaves out tasks, which have marker in
// their arguments, unless marker is empty.
func processes(agent int, dir, marker string) ([]int, error) {
	table, err := task.Processes()
	if err != nil {
		return nil, err
	}
	found := map[int]bool{}
	if agent != 0 {
		for _, st := range task.Descendants(table, agent) {
			found[st.PID] = true
		}
	}
	for pid := range table {
		line := commandLine(pid)
		if bytes.HasPrefix(line, []byte("outrider-supervisor\x00")) && bytes.Contains(line, []byte(dir+"/")) {
			found[pid] = true
		}
	}
	var list []int
	for pid := range found {
		if marker == "" || !bytes.Contains(commandLine(pid), []byte(marker)) {
			list = append(list, pid)
		}
	}
	return list, nil
}

func commandLine(pid int) []byte {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // missing: it has ended
	return b
}

// use is the total resource usage of some processes.
type use struct {
	memory float64            // proportional set size (PSS), in kB
	each   map[string]float64 // memory by program and role
	ticks  float64            // of processor time, so far
}

func used(pids []int) (sum use, err error) {
	sum.each = map[string]float64{}
	for _, pid := range pids {
		var memory procfs.ProcSMapsRollup
		p, err := procfs.NewProc(pid)
		if err == nil {
			memory, err = p.ProcSMapsRollup()
		}
		var st task.Stat
		if err == nil {
			st, err = task.ReadStat(pid)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) { // a short-lived command of the agent
			continue
		}
		if err != nil {
			return use{}, err
		}
		sum.memory += float64(memory.Pss) / 1024
		args := strings.Split(string(commandLine(pid))+"\x00", "\x00")
		sum.each[strings.TrimSpace(filepath.Base(args[0])+" "+args[1])] += float64(memory.Pss) / 1024
		sum.ticks += float64(st.UTime + st.STime)
	}
	return sum, nil
}
