// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/procfs"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// KillNamespace ends a process that is the first of a pid namespace, and all others of it with that
// (pid_namespaces(7)). It then removes the cgroups that an agent in it has made: of supervisors, and of the allocations
// below data, the agent's data directory as this process sees it. wait waits for the first process.
func KillNamespace(ctx context.Context, first *os.Process, data string, wait func() error) error {
	allocs := map[string]bool{}
	entries, _ := os.ReadDir(filepath.Join(data, "alloc"))
	for _, e := range entries {
		allocs[e.Name()] = true
	}
	leaves, err := namespaceLeaves(first.Pid)
	err = errors.Join(err, first.Kill(), wait())
	return errors.Join(err, removeCgroups(ctx, append(taskCgroups(allocs), leaves...)))
}

func namespaceLeaves(first int) (leaves []string, err error) {
	namespace := func(pid int) string {
		link, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		return link
	}
	own := namespace(first)
	if own == "" {
		return nil, nil
	}
	list, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("failed to list processes: %w", err)
	}
	for _, p := range list {
		if namespace(p.PID) == own {
			leaves = append(leaves, process{task.Identity{PID: p.PID}}.ownCgroups()...)
		}
	}
	return leaves, nil
}
