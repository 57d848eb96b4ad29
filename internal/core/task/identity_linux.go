// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Identity names one process indefinitely: a pid alone is used again by the kernel.
type Identity struct {
	BootID string `json:"boot_id"` // /proc/sys/kernel/random/boot_id
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // start time in clock ticks after boot: field 22 of /proc/<pid>/stat, proc_pid_stat(5)
}

// BootID is this boot's id, empty where /proc does not tell.
var BootID = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
})

// Identify returns the identity of a process that exists now. A zombie exists.
func Identify(pid int) (Identity, error) {
	st, err := ReadStat(pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{BootID: BootID(), PID: pid, Start: st.Start}, nil
}

// Alive reports whether the process with this identity still exists, as a running
// process or as a zombie that is not reaped.
func (id Identity) Alive() bool {
	if id.PID <= 0 || id.BootID != BootID() {
		return false
	}
	st, err := ReadStat(id.PID)
	return err == nil && st.Start == id.Start
}

// Inode names a file of a file system that is mounted. The zero value names none.
type Inode struct {
	Device uint64 `json:"device"`
	Number uint64 `json:"number"`
}

// InodeOf returns that of an open file.
func InodeOf(fd int) (Inode, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return Inode{Device: st.Dev, Number: st.Ino}, err
}

// ClockTick is USER_HZ: how many of the clock ticks in Stat are a second. Linux has had 100 on every
// architecture that Nomad runs on since there is a USER_HZ.
const ClockTick = 100

// Stat is what Outrider needs of /proc/<pid>/stat, proc_pid_stat(5).
type Stat struct {
	PID     int
	Parent  int
	Group   int
	Session int
	UTime   uint64 // clock ticks
	STime   uint64 // clock ticks
	Start   uint64 // clock ticks after boot
	RSS     int64  // pages

	// Zombie is a process that has ended, with all its threads, and that is not reaped. (One of
	// which only the main thread has ended has that state, too, and runs on.)
	Zombie bool
}

// Identity is that of the process, in this boot.
func (st Stat) Identity() Identity { return Identity{BootID: BootID(), PID: st.PID, Start: st.Start} }

// ReadStat reads /proc/<pid>/stat.
func ReadStat(pid int) (Stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	// the command name is in parentheses and may itself contain any of " ()"
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return Stat{}, fmt.Errorf("malformed /proc/%d/stat", pid)
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 50 {
		return Stat{}, fmt.Errorf("malformed /proc/%d/stat", pid)
	}
	field := func(n int) int64 { // n as numbered in the man page; field 3 is f[0]
		v, _ := strconv.ParseInt(f[n-3], 10, 64)
		return v
	}
	return Stat{
		PID:     pid,
		Parent:  int(field(4)),
		Group:   int(field(5)),
		Session: int(field(6)),
		UTime:   uint64(field(14)),
		STime:   uint64(field(15)),
		Start:   uint64(field(22)),
		RSS:     field(24),
		Zombie:  f[0] == "Z" && field(20) < 2,
	}, nil
}
