// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"path/filepath"
	"slices"
	"strings"
)

// v1Controllers lists the v1 hierarchies in the order in which a task joins them. freezer is the first, so Nomad's own
// kill, which looks for processes there, finds the task as early as possible.
var v1Controllers = []string{"freezer", "pids", "memory", "cpu", "cpuacct", blkio, "cpuset", systemd}

// nomadMakes lists the v1 controllers for which Nomad itself makes each task's group (cgroupslib, lifeCG1).
var nomadMakes = []string{"freezer", "memory", "cpu", "cpuset"}

// systemd is the v1 hierarchy "name=systemd". It has no controller: systemd uses it to track the processes of its
// units. Only a Leaf uses it here.
const systemd = "systemd"

// Plan returns the groups of a task. It changes nothing. Save the result before [Group.Create] makes any directory:
// then the directories can be removed even after a crash.
//
// cpusetPath is LinuxResources.CpusetCgroupPath as Nomad sent it: the task's scope on v2, its cpuset group on v1. If it
// is empty, the result has mode None. Nomad allows no slash in allocID or taskName.
//
// The list optional contains controllers that only some tasks need, such as [IO]. If the kernel does not support one of
// them, the group does without it.
//
// The parent of the groups is derived from cpusetPath, which shows where Nomad really made groups. NOMAD_PARENT_CGROUP
// cannot be used: Nomad 1.11 sets it to "nomad.slice" even on v1, where it uses /nomad, and regardless of the
// configured cgroup_parent.
//
// On a host without an agent, the name of the parent begins with "outrider-tasks-". Then Create makes all groups
// itself, and the task has no cpuset group on v1.
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

// isOurs reports whether a parent is for a host without an agent, where this package makes it and the groups below it.
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

// Leaf plans a group for a supervisor. The tasks' groups cannot be used: their limits must not apply to the supervisor.
// nomad.service cannot be used either: when the agent stops, systemd would kill the supervisor, and with it the tasks.
//
// On v2 the group is <parent>/<name>.scope, a sibling of share.slice. On v1 it is <parent>/<name> in the hierarchies in
// which a service manager kills processes, name=systemd and cgroup2. If neither is mounted, the mode is None.
//
// The parent is derived from cpusetPath, which is the cpusetPath of any task of the same agent. If cpusetPath is empty,
// Leaf takes Nomad's default parent. name has no slash.
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

// parent returns the path of Nomad's parent group, relative to the root of a hierarchy. It is derived from the path of
// a group below the parent.
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
