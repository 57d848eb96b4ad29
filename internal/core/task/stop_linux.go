// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
)

// The first and the last real-time signal that programs use, signal(7): C libraries reserve the kernel's first two.
const firstRealTime, lastRealTime = 34, 64

// otherNames maps the names of signal(7) that package unix lacks.
var otherNames = map[string]unix.Signal{"IOT": unix.SIGIOT, "CLD": unix.SIGCLD, "POLL": unix.SIGPOLL}

// ParseSignal parses a number or a name of signal(7), with or without SIG, such as SIGHUP or SIGRTMIN+3.
func ParseSignal(name string) (unix.Signal, error) {
	short := strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(name)), "SIG")
	sig := otherNames[short]
	if sig == 0 {
		sig = unix.SignalNum("SIG" + short)
	}
	if sig == 0 {
		number := strings.Replace(short, "RTMAX", strconv.Itoa(lastRealTime), 1)
		number = strings.Replace(number, "RTMIN", strconv.Itoa(firstRealTime), 1)
		sig = signalSum(number)
	}
	if sig == 0 {
		return 0, fmt.Errorf("signal %q is not known: use a name such as \"SIGHUP\" or \"SIGRTMIN+3\", or a number", name)
	}
	return sig, nil
}

// signalSum parses a signal such as "10", "34+3" or "64-1". It returns 0 if no such signal exists.
func signalSum(text string) unix.Signal {
	sign := 1
	first, second, two := strings.Cut(text, "+")
	if !two {
		first, second, two = strings.Cut(text, "-")
		sign = -1
	}
	if !two {
		second = "0"
	}
	number, err := strconv.ParseUint(first, 10, 8)
	offset, err2 := strconv.ParseUint(second, 10, 8)
	sig := int(number) + sign*int(offset)
	least := 1
	if two { // an offset is relative to RTMIN or RTMAX
		least = firstRealTime
	}
	if err != nil || err2 != nil || int(number) < least || sig < least || sig > lastRealTime {
		return 0
	}
	return unix.Signal(sig)
}

// SignalledLeft reports whether any process that received the stop signal in this mode still exists, apart from the
// init of the task's PID namespace. Call it after the main process has ended.
func (st *State) SignalledLeft(mode KillMode) bool {
	switch mode {
	case KillAll:
		if st.Command.Isolation.PID { // the init does not end before the cgroup is killed
			pids, err := st.Group.Procs()
			return err == nil && len(pids) > 1
		}
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

// Processes returns the processes of the task's cgroup. Without a cgroup it returns the processes
// of the main process's session.
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

// session returns the processes of the main process's session. It returns none if the main process is gone: the kernel
// may then have reused its pid, which is the session's id, for another session.
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
