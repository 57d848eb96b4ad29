// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
)

// ParseSignal takes the names of signal(7), with or without SIG.
func ParseSignal(name string) (unix.Signal, error) {
	full := strings.ToUpper(strings.TrimSpace(name))
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	if sig := unix.SignalNum(full); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("signal %q is not known: use a name such as \"SIGHUP\"", name)
}

// SignalledLeft returns whether a process is left, besides the main one, of those that a stop
// signal in this mode was for.
func (st *State) SignalledLeft(mode KillMode) bool {
	switch mode {
	case KillAll:
		empty, err := st.Group.Empty()
		return err == nil && !empty
	case KillGroup:
		pids, err := st.Group.Procs()
		return err == nil && slices.ContainsFunc(pids, func(pid int) bool {
			p, err := ReadStat(pid)
			return err == nil && p.Group == st.Identity.PID && !p.Zombie
		})
	}
	return false
}

// Processes are those of the task's cgroup, or without one those of the session that the main
// process leads.
func (st *State) Processes() []Stat {
	if st.Group.Mode != cgroup.V1 && st.Group.Mode != cgroup.V2 {
		return st.session()
	}
	pids, err := st.Group.Procs()
	if err != nil {
		return nil
	}
	var stats []Stat
	for _, pid := range pids {
		if p, err := ReadStat(pid); err == nil {
			stats = append(stats, p)
		}
	}
	return stats
}

// session returns none if the main process is gone: its session may be another's by now.
func (st *State) session() (found []Stat) {
	table, err := Processes()
	leader := table[st.Identity.PID]
	if err != nil || leader.Start != st.Identity.Start || st.Identity.BootID != BootID() {
		return nil
	}
	for _, p := range table {
		if p.Session == leader.PID {
			found = append(found, p)
		}
	}
	return found
}
