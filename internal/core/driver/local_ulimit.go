// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// rlimits parses the option ulimit. The values are in the units of setrlimit(2): bytes, seconds or a number.
func (o *TaskOptions) rlimits() ([]task.Rlimit, error) {
	var limits []task.Rlimit
	for _, name := range slices.Sorted(maps.Keys(o.Ulimit)) {
		resource := slices.Index(task.RlimitNames[:], name)
		if resource < 0 {
			known := strings.Join(slices.Sorted(slices.Values(task.RlimitNames[:])), ", ")
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
			return nil, fmt.Errorf("ulimit %s = %q is not a limit: use a number, \"unlimited\", or two of these as "+
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
