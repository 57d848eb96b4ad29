// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"os"
	"strconv"
)

// Processes returns all processes in /proc by pid.
func Processes() (map[int]Stat, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	table := make(map[int]Stat, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			if st, err := ReadStat(pid); err == nil { // else it has exited since
				table[pid] = st
			}
		}
	}
	return table, nil
}

// Descendants returns the descendants of pids in a table from Processes, children before grandchildren.
func Descendants(table map[int]Stat, pids ...int) []Stat {
	children := make(map[int][]Stat, len(table))
	for _, st := range table {
		children[st.Parent] = append(children[st.Parent], st)
	}
	var found []Stat
	for queue := pids; len(queue) > 0; queue = queue[1:] {
		for _, st := range children[queue[0]] {
			found = append(found, st)
			queue = append(queue, st.PID)
		}
	}
	return found
}
