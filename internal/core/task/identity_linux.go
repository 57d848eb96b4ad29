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

// Identity identifies one process uniquely: a pid alone is reused by the kernel.
type Identity struct {
	BootID string `json:"boot_id"` // /proc/sys/kernel/random/boot_id
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // start time in clock ticks after boot: field 22 of /proc/<pid>/stat, proc_pid_stat(5)
}

// BootID returns the id of this boot, or "" if /proc does not provide it.
var BootID = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
})

// Identify returns the identity of a process that exists now. A zombie counts as existing.
func Identify(pid int) (Identity, error) {
	st, err := ReadStat(pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{BootID: BootID(), PID: pid, Start: st.Start}, nil
}

// Alive reports whether the process with this identity still exists, running or as a zombie.
func (id Identity) Alive() bool {
	if id.PID <= 0 || id.BootID != BootID() {
		return false
	}
	st, err := ReadStat(id.PID)
	return err == nil && st.Start == id.Start
}

// Inode identifies a file of a mounted file system. The zero value identifies none.
type Inode struct {
	Device uint64 `json:"device"`
	Number uint64 `json:"number"`
}

// InodeOf returns the inode of an open file.
func InodeOf(fd int) (Inode, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return Inode{Device: st.Dev, Number: st.Ino}, err
}

// ClockTick is USER_HZ, the number of clock ticks per second in Stat. It has always been 100 on every
// architecture that Nomad runs on.
const ClockTick = 100

// Stat contains the fields of /proc/<pid>/stat, proc_pid_stat(5), that Outrider needs.
type Stat struct {
	PID     int
	Parent  int
	Group   int
	Session int
	UTime   uint64 // clock ticks
	STime   uint64 // clock ticks
	Start   uint64 // clock ticks after boot
	RSS     int64  // pages

	// Zombie is set if the process has exited with all its threads and is not reaped. (The state
	// in /proc is also Z after only the main thread has exited, while other threads still run.)
	Zombie bool
}

// Identity returns the identity of the process in this boot.
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
