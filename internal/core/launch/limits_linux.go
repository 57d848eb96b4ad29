// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// setOOMScoreAdj always writes the value, even 0: the inherited value protects the supervisor, and must not protect the
// program. Only a value below the last one that a privileged process has written needs CAP_SYS_RESOURCE.
func setOOMScoreAdj(v int) *Error {
	e := writeFile("/proc/self/oom_score_adj", strconv.Itoa(v))
	switch {
	case e == 0, v == 0:
		return nil
	case e == unix.EACCES || e == unix.EPERM:
		return refuse(e, "oom_score_adj "+strconv.Itoa(v)+" is lower than the agent may set: it needs CAP_SYS_RESOURCE")
	case e == unix.EINVAL:
		return refuse(e, "oom_score_adj "+strconv.Itoa(v)+" is not between -1000 and 1000")
	default:
		return failed("set oom_score_adj "+strconv.Itoa(v), e)
	}
}

// setNice sets the nice value. For 0, which also means "not set", it does nothing: DefaultScheduling has already set 0.
func setNice(v int) *Error {
	if v == 0 {
		return nil
	}
	if v < -20 || v > 19 {
		return refuse(unix.EINVAL, "nice "+strconv.Itoa(v)+" is not between -20 and 19")
	}
	_, _, e := unix.RawSyscall(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, uintptr(v))
	switch e {
	case 0:
		return nil
	case unix.EACCES, unix.EPERM:
		return refuse(e, "nice "+strconv.Itoa(v)+" is lower than the agent may set: it needs CAP_SYS_NICE")
	default:
		return failed("set nice "+strconv.Itoa(v), e)
	}
}

type rlimit struct{ soft, hard uint64 }

func prlimit(resource int, set, get *rlimit) syscall.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, uintptr(resource), uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(get)), 0, 0)
	return e
}

// RestoreNoFile restores the soft limit of open files, which Go raises at the start of every process. Only Go's runtime
// knows the earlier limit. syscall.Exec restores it before it calls execve, which then fails here for lack of a path.
func RestoreNoFile() { _ = syscall.Exec("", nil, nil) }

// setNoFile sets the soft limit of open files. 0 means the limit that the supervisor was started with, which Go
// restores. After a failed execve of the supervisor, Go no longer knows that limit, so the supervisor passes it in the
// Spec.
func setNoFile(soft uint64) {
	if soft == 0 {
		RestoreNoFile()
		return
	}
	var now rlimit
	if prlimit(unix.RLIMIT_NOFILE, nil, &now) == 0 {
		_ = prlimit(unix.RLIMIT_NOFILE, &rlimit{min(soft, now.hard), now.hard}, nil)
	}
}

// raiseLimits raises hard limits, as long as the launcher has the privilege. Limits are lowered only just before
// execve, by lowerLimits, which needs no privilege: under the task's ulimit -v or -u, steps of the launcher could fail.
func raiseLimits(limits []task.Rlimit) *Error {
	for _, l := range limits {
		if l.Soft > l.Hard {
			return refuse(unix.EINVAL, "ulimit "+limitName(l.Resource)+": the soft limit "+limitValue(l.Soft)+" is above the "+
				"hard limit "+limitValue(l.Hard))
		}
		var now rlimit
		if e := prlimit(l.Resource, nil, &now); e != 0 {
			return failed("read ulimit "+limitName(l.Resource), e)
		}
		if l.Hard <= now.hard {
			continue
		}
		switch e := prlimit(l.Resource, &rlimit{now.soft, l.Hard}, nil); e {
		case 0:
		case unix.EPERM:
			return refuse(e, "ulimit "+limitName(l.Resource)+": the hard limit "+limitValue(l.Hard)+" is above the agent's "+
				limitValue(now.hard)+", and the agent can't raise it")
		default:
			return failed("raise ulimit "+limitName(l.Resource), e)
		}
	}
	return nil
}

func lowerLimits(limits []task.Rlimit) *Error {
	for _, l := range limits {
		if e := prlimit(l.Resource, &rlimit{l.Soft, l.Hard}, nil); e != 0 {
			return failed("set ulimit "+limitName(l.Resource), e)
		}
	}
	return nil
}

func limitValue(v uint64) string {
	if v == task.Unlimited {
		return "unlimited"
	}
	return strconv.FormatUint(v, 10)
}

// limitName returns the name of a limit in limits.conf(5).
func limitName(resource int) string {
	if resource < 0 || resource >= len(task.RlimitNames) {
		return strconv.Itoa(resource)
	}
	return task.RlimitNames[resource]
}
