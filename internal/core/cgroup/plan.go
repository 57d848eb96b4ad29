// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"path/filepath"
	"slices"
	"strings"
)

// v1Controllers lists the v1 hierarchies that a task joins, in this order. freezer is the first, since Nomad's own kill
// finds the task's processes in it.
var v1Controllers = []string{"freezer", "pids", "memory", "cpu", "cpuacct", blkio, "cpuset", systemd}

// nomadMakes lists the v1 controllers for which Nomad makes a group for each task (cgroupslib, lifeCG1).
var nomadMakes = []string{"freezer", "memory", "cpu", "cpuset"}

// systemd is the v1 hierarchy without a controller, "name=systemd", in which systemd tracks the
// processes of its units. Only a Leaf uses it.
const systemd = "systemd"

// Plan returns the groups of a task. It changes nothing. Save the result before [Group.Create]
// makes any directory, so the directories can be removed in any case.
//
// cpusetPath is LinuxResources.CpusetCgroupPath as Nomad sent it: on v2 the task's scope, on v1
// its cpuset group. If it is empty, the result has mode None. Nomad allows no slash in allocID
// or taskName.
//
// optional names controllers that only some tasks need, such as [IO]. The group has them if the
// kernel does.
//
// If the parent's name begins with "outrider-tasks-", all groups are ours, and none is a cpuset
// group. This is how a task gets groups on a host without an agent.
//
// The parent of the groups is derived from cpusetPath, which shows where Nomad really made groups.
// NOMAD_PARENT_CGROUP cannot be used: Nomad 1.11 sets it to "nomad.slice" even on v1, where it
// uses /nomad, and regardless of the configured cgroup_parent.
func Plan(s Support, cpusetPath, allocID, taskName string, optional ...string) Group {
	scope := allocID + "." + taskName
	if cpusetPath == "" || allocID == "" || taskName == "" || strings.Contains(scope, "/") {
		return Group{Mode: None}
	}
	switch s.Mode {
	case V2:
		g := Group{Mode: V2, Path: cpusetPath, Controllers: s.controllers(cpusetPath, optional)}
		if isOurs(filepath.Dir(cpusetPath)) {
			g.Owned = []string{cpusetPath}
		}
		return g
	case V1:
		g := Group{Mode: V1, V1: make(map[string]string)}
		parent := s.parent(cpusetPath)
		own := isOurs(parent)
		for _, controller := range v1Controllers {
			mount := s.Mounts[controller]
			switch {
			case mount == "" || controller == systemd || controller == "cpuset" && own:
			case controller == blkio && !slices.Contains(optional, IO):
			case controller == "cpuset":
				g.V1[controller] = cpusetPath
			default:
				g.V1[controller] = filepath.Join(mount, parent, scope)
			}
		}
		if s.Unified != "" {
			g.Unified = filepath.Join(s.Unified, parent, scope)
			g.Owned = append(g.Owned, g.Unified)
		}
		for _, controller := range v1Controllers {
			dir := g.V1[controller]
			if dir != "" && (own || !g.nomadMade(dir)) && !slices.Contains(g.Owned, dir) {
				g.Owned = append(g.Owned, dir)
			}
		}
		return g
	}
	return Group{Mode: None}
}

// isOurs reports whether a parent of groups is ours and not Nomad's.
func isOurs(parent string) bool { return strings.HasPrefix(filepath.Base(parent), "outrider-tasks-") }

// controllers returns the wanted and optional controllers that a v2 scope really has. Support covers only scopes
// below nomad.slice; an agent may have its scopes elsewhere.
func (s Support) controllers(scope string, optional []string) []string {
	has := s.Controllers
	if exists(filepath.Join(scope, "cgroup.controllers")) {
		has = words(filepath.Join(scope, "cgroup.controllers"))
	}
	all := slices.Concat(wanted, optional)
	return slices.DeleteFunc(all, func(c string) bool { return !slices.Contains(has, c) })
}

// Leaf plans a group for a supervisor. It is separate from the groups of the tasks, whose limits
// must not apply to the supervisor. It is outside nomad.service: otherwise systemd would kill the
// supervisor, and with it the tasks, when the agent stops.
//
// On v2 it is <parent>/<name>.scope, a sibling of share.slice. On v1 it is <parent>/<name> in the
// hierarchies that a service manager uses to kill, name=systemd and cgroup2. If neither exists,
// the mode is None.
//
// The parent is derived from cpusetPath, the path of any task of the same agent; empty means
// Nomad's default. name has no slash.
func Leaf(s Support, cpusetPath, name string) Group {
	g := Group{Mode: s.Mode, Leaf: true}
	parent := s.parent(cpusetPath)
	switch s.Mode {
	case V2:
		g.Path = filepath.Join(s.Root, parent, name+".scope")
		g.Owned = []string{g.Path}
		g.Home = s.Own
	case V1:
		if mount := s.Mounts[systemd]; mount != "" {
			dir := filepath.Join(mount, parent, name)
			g.V1 = map[string]string{systemd: dir}
			g.Owned = append(g.Owned, dir)
		}
		if s.Unified != "" {
			g.Unified = filepath.Join(s.Unified, parent, name)
			g.Owned = append(g.Owned, g.Unified)
		}
	}
	if len(g.Owned) == 0 {
		return Group{Mode: None}
	}
	return g
}

// nomadMade reports whether Nomad makes this directory for any of its controllers.
func (g Group) nomadMade(dir string) bool {
	return slices.ContainsFunc(nomadMakes, func(controller string) bool { return g.V1[controller] == dir })
}

// parent returns the name of Nomad's parent group, relative to the root of a hierarchy, derived
// from the path of a group below it.
func (s Support) parent(cpusetPath string) string {
	def, root, dir := "nomad.slice", s.Root, ""
	if s.Mode == V1 {
		def, root = "nomad", filepath.Join(s.Root, "cpuset")
	}
	switch {
	case cpusetPath == "":
	case s.Mode == V1 && filepath.Base(cpusetPath) == "share": // <parent>/share
		dir = filepath.Dir(cpusetPath)
	default: // <parent>/reserve/<scope>, <parent>/{share,reserve}.slice/<scope>
		dir = filepath.Dir(filepath.Dir(cpusetPath))
	}
	if rel, ok := strings.CutPrefix(dir, root+"/"); ok {
		return rel
	}
	return def
}
