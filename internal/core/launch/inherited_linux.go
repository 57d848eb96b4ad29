// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file resets attributes that a process inherits from its parent (fork(2), execve(2)). A task must not inherit
// them from its supervisor, however the agent was started: the settings of nice, chrt, ionice, taskset, numactl and
// setarch; a session keyring; ambient capabilities. umask, signals and oom_score_adj have their own steps.

// DefaultScheduling gives the calling thread, and the processes that it forks, the default scheduling: policy and
// priority (sched(7)), I/O priority (ioprio_set(2)), memory policy (set_mempolicy(2)), and every processor of its
// cpuset (sched_setaffinity(2)). A setting that the kernel or a sandbox refuses to change stays as it is.
func DefaultScheduling() {
	const process, thisThread = 1, 0 // process is IOPRIO_WHO_PROCESS
	var normal struct{ priority int32 }
	_, _ = call(unix.SYS_SCHED_SETSCHEDULER, thisThread, unix.SCHED_NORMAL, uintptr(unsafe.Pointer(&normal)))
	_, _ = call(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, thisThread, 0)
	_, _ = call(unix.SYS_IOPRIO_SET, process, thisThread, 0)
	_, _ = call(unix.SYS_SET_MEMPOLICY, 0, 0, 0)
	const size = unsafe.Sizeof(allProcessors)
	_, _ = call(unix.SYS_SCHED_SETAFFINITY, thisThread, size, uintptr(unsafe.Pointer(&allProcessors)))
}

// allProcessors has more bits than any kernel has processors (CONFIG_NR_CPUS).
var allProcessors = func() (mask [8192 / 64]uint64) {
	for i := range mask {
		mask[i] = ^uint64(0)
	}
	return mask
}()

// ownKeyring gives the process a new, empty session keyring (keyctl(2), KEYCTL_JOIN_SESSION_KEYRING). If a sandbox
// refuses this, ownKeyring returns no error: the sandbox also keeps the program from using keyrings.
func ownKeyring() *Error {
	_, e := call(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0)
	switch {
	case e == 0, e == unix.ENOSYS, e == unix.EPERM, e == unix.EACCES:
		return nil
	case e == unix.EDQUOT && !isHostsRoot(): // quota used up (200 keys): the user can read the inherited keys anyway
		return nil
	}
	return failed("create a session keyring", e)
}

// isHostsRoot reports whether the process is the host's root, and not just the root of a user namespace.
func isHostsRoot() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	return unix.Geteuid() == 0 && err == nil && slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"})
}

// defaultPersonality undoes setarch(8): the program is native, with randomized addresses (personality(2)).
func defaultPersonality() { _, _ = call(unix.SYS_PERSONALITY, 0) }
