// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Join moves a process with all its threads into the group; pid 0 means the caller. Each hierarchy takes some
// milliseconds, since the kernel waits for an RCU grace period. Tasks do not use Join: they are started inside their
// group.
func (g Group) Join(pid int) error {
	dirs := g.dirs()
	if cpuset := g.V1["cpuset"]; cpuset != "" {
		dirs = append(dirs, cpuset)
	}
	for _, dir := range dirs {
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// Leave moves the calling process out of the group, so the process can remove the group before it exits. In each
// hierarchy, Leave first tries to move the process to the root. In a cgroup namespace, the root accepts no process if
// it delegates controllers; on cgroup2, Leave then tries the group of process 1. Finally it tries Home, because an
// agent without root that runs in a delegated group can write to no other group.
func (g Group) Leave() error {
	one, _ := os.ReadFile("/proc/1/cgroup")
	var errs []error
	for _, dir := range g.dirs() {
		root := hierarchyRoot(dir)
		homes := []string{root}
		if dir == g.cgroup2() {
			homes = append(homes, filepath.Join(root, ownV2(one)))
			if g.Home != "" && g.Home != dir {
				homes = append(homes, g.Home)
			}
		}
		var err error
		for _, home := range slices.Compact(homes) {
			if err = writeFile(filepath.Join(home, "cgroup.procs"), "0"); err == nil {
				break
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("failed to leave cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// hierarchyRoot returns the topmost cgroup above dir: its parent has no cgroup.procs.
func hierarchyRoot(dir string) string {
	for {
		up := filepath.Dir(dir)
		if up == dir || !exists(filepath.Join(up, "cgroup.procs")) {
			return dir
		}
		dir = up
	}
}
