// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
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
// state below dir, which are nobody's descendants once their plugin has ended.
// Tasks are known by marker, which is among their arguments.
func tree(agent int, dir, marker string) ([]process, error) {
	table, err := task.Processes()
	if err != nil {
		return nil, err
	}
	args := map[int][][]byte{}
	var roots []int
	if agent != 0 {
		roots = append(roots, agent)
	}
	for pid := range table {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		args[pid] = bytes.Split(bytes.TrimRight(b, "\x00"), []byte{0})
		if string(args[pid][0]) == "outrider-supervisor" && bytes.Contains(b, []byte(dir+"/")) {
			roots = append(roots, pid)
		}
	}
	var found []process
	roles := map[int]role{}
	visit := func(st task.Stat) {
		pid, parent := st.PID, roles[st.Parent]
		if _, seen := roles[pid]; seen {
			return
		}
		roles[pid] = parent
		if len(args[pid]) == 0 || len(args[pid][0]) == 0 { // a zombie has no arguments
			return
		}
		if parent != isTask { // what a task starts belongs to it
			roles[pid] = roleOf(pid, agent, args[pid], marker)
		}
		found = append(found, process{pid, roles[pid]})
	}
	for _, pid := range roots {
		visit(table[pid])
	}
	for _, st := range task.Descendants(table, roots...) {
		visit(st)
	}
	return found, nil
}

// helps says whether a process of this role is there for the tasks of a driver.
// exec-lite's plugin stays while jobs of raw_exec run, and is not raw_exec's.
func (r role) helps(driver string) bool {
	switch r {
	case isTask, isAgent:
		return false
	case isPlugin, isSupervisor, isCollector:
		return driver != raw
	}
	return true
}

func roleOf(pid, agent int, args [][]byte, marker string) role {
	for _, a := range args {
		if bytes.Contains(a, []byte(marker)) {
			return isTask
		}
	}
	second := ""
	if len(args) > 1 {
		second = string(args[1])
	}
	switch {
	case pid == agent:
		return isAgent
	case string(args[0]) == "outrider-supervisor" && second == "collect":
		return isCollector
	case string(args[0]) == "outrider-supervisor":
		return isSupervisor
	case strings.HasPrefix(filepath.Base(string(args[0])), "nomad-driver-"):
		return isPlugin
	case second == "executor":
		return isExecutor
	case second == "logmon":
		return isLogmon
	}
	return isOther
}

// memory is what processes use, in kB.
type memory [5]int

// The elements of memory.
const (
	pss     = iota // each page divided by the number of its users
	anon           // of it what no file backs: heaps and stacks
	private        // dirty and not shared; a program that was just built counts until it is on disk
	tables         // page tables, which are not in the PSS
	threads        // each has a kernel stack, which is not in the PSS
)

func (m *memory) add(n memory) {
	for i := range m {
		m[i] += n[i]
	}
}

// memoryOf reads smaps_rollup and status of one process (proc(5)).
func memoryOf(pid int) (memory, error) {
	rollup, err := fields(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, err
	}
	status, err := fields(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, err
	}
	return memory{rollup["Pss"], rollup["Pss_Anon"], rollup["Private_Dirty"], status["VmPTE"], status["Threads"]}, nil
}

// ended says whether a file of proc could not be read since its process has ended.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// fields reads the "Name: number" lines of a file of proc.
func fields(path string) (map[string]int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := map[string]int{}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		name, rest, _ := strings.Cut(s.Text(), ":")
		if f := strings.Fields(rest); len(f) > 0 {
			if n, err := strconv.Atoi(f[0]); err == nil {
				m[name] = n
			}
		}
	}
	return m, nil
}
