// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// ulimitNames maps the names of limits.conf(5) to the resources of setrlimit(2).
var ulimitNames = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK,
	"msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE, "nofile": unix.RLIMIT_NOFILE,
	"nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
	"rttime": unix.RLIMIT_RTTIME, "sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

// rlimits parses the option ulimit. The values are in the units of setrlimit(2):
// bytes, seconds or a number.
func (o *TaskOptions) rlimits() ([]task.Rlimit, error) {
	var limits []task.Rlimit
	for _, name := range slices.Sorted(maps.Keys(o.Ulimit)) {
		resource, ok := ulimitNames[name]
		if !ok {
			known := strings.Join(slices.Sorted(maps.Keys(ulimitNames)), ", ")
			return nil, fmt.Errorf("unknown ulimit %q: use one of %s", name, known)
		}
		text := o.Ulimit[name]
		soft, hard, pair := strings.Cut(text, ":")
		if !pair {
			hard = soft
		}
		s, err1 := ulimitValue(soft)
		h, err2 := ulimitValue(hard)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("ulimit %s = %q is not a limit: write a number, \"unlimited\", or two of them as "+
				"\"soft:hard\"", name, text)
		}
		if s > h {
			return nil, fmt.Errorf("ulimit %s = %q has a soft limit above the hard one", name, text)
		}
		limits = append(limits, task.Rlimit{Resource: resource, Soft: s, Hard: h})
	}
	return limits, nil
}

func ulimitValue(s string) (uint64, error) {
	s = strings.TrimSpace(s)
	if s == "unlimited" || s == "-1" {
		return task.Unlimited, nil
	}
	return strconv.ParseUint(s, 10, 64)
}
