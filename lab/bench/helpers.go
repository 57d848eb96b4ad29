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

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// role is what a process is to a task.
type role string

const (
	isTask       role = "task"
	isAgent      role = "agent"
	isPlugin     role = "plugin"
	isSupervisor role = "supervisor"
	isCollector  role = "collector"
	isExecutor   role = "executor"
	isLogmon     role = "logmon"
	isOther      role = "other"
)

// process is one process of the agent's tree.
type process struct {
	pid  int
	role role
}

// tree lists the agent (0 for none), all its descendants, and the supervisors that keep their
// state below dir, whose parent is init once their plugin has ended. Tasks have marker in
// their arguments.
func tree(agent int, dir, marker string) ([]process, error) {
	table, err := task.Processes()
	if err != nil {
		return nil, err
	}
	args := map[int][]string{}
	var list []task.Stat
	if agent != 0 {
		list = append(list, table[agent])
		list = append(list, task.Descendants(table, agent)...)
	}
	for pid, st := range table {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		args[pid] = strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		if args[pid][0] == "outrider-supervisor" && bytes.Contains(b, []byte(dir+"/")) {
			list = append(list, st)
			list = append(list, task.Descendants(table, pid)...)
		}
	}
	var found []process
	roles := map[int]role{}
	for _, st := range list { // parents come first
		pid, parent := st.PID, roles[st.Parent]
		if _, seen := roles[pid]; seen {
			continue
		}
		roles[pid] = parent
		if len(args[pid]) == 0 || args[pid][0] == "" { // a zombie has no arguments
			continue
		}
		if parent != isTask { // a task's children belong to it
			roles[pid] = roleOf(pid, agent, args[pid], marker)
		}
		found = append(found, process{pid, roles[pid]})
	}
	return found, nil
}

// helps reports whether a process of this role works for the tasks of a driver. exec-lite's
// plugin also runs during jobs of raw_exec and is not charged to them.
func (r role) helps(driver string) bool {
	switch r {
	case isTask, isAgent:
		return false
	case isPlugin, isSupervisor, isCollector:
		return driver != raw
	}
	return true
}

func roleOf(pid, agent int, args []string, marker string) role {
	second := ""
	if len(args) > 1 {
		second = args[1]
	}
	switch {
	case filepath.Base(args[0]) == "ssh": // of a task that is elsewhere
		return isOther
	case strings.Contains(strings.Join(args, " "), marker):
		return isTask
	case pid == agent:
		return isAgent
	case args[0] == "outrider-supervisor" && second == "collect":
		return isCollector
	case args[0] == "outrider-supervisor":
		return isSupervisor
	case strings.HasPrefix(filepath.Base(args[0]), "nomad-driver-"):
		return isPlugin
	case second == "executor":
		return isExecutor
	case second == "logmon":
		return isLogmon
	}
	return isOther
}

// usage is the memory of the helpers of tasks, and of the agent.
type usage [6]int

// The elements of usage: kB, but for threads.
const (
	pss      = iota // of each page this process's share
	anon            // of it heaps and stacks: pages that no file backs
	private         // dirty and not shared; a new program counts until it is on the disk
	tables          // page tables, which are not in the PSS
	threads         // each has a kernel stack, which is not in the PSS
	agentPSS        // not in pss
)

// memoryOf reads smaps_rollup and status of one process (proc(5)).
func memoryOf(pid int) (usage, error) {
	values := map[string]int{}
	for _, file := range []string{"smaps_rollup", "status"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			return usage{}, err
		}
		for line := range strings.Lines(string(b)) {
			name, rest, _ := strings.Cut(line, ":")
			var n int
			if _, err := fmt.Sscan(rest, &n); err == nil {
				values[name] = n
			}
		}
	}
	return usage{
		pss: values["Pss"], anon: values["Pss_Anon"], private: values["Private_Dirty"], tables: values["VmPTE"],
		threads: values["Threads"],
	}, nil
}

// ended reports whether a file of proc could not be read because its process has ended.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }
