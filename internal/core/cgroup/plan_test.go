// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func v1Support(unified string) Support {
	s := Support{Mode: V1, Root: "/cg", Mounts: map[string]string{}, Unified: unified}
	for _, c := range v1Controllers {
		s.Mounts[c] = "/cg/" + c
	}
	return s
}

func TestPlan_ReturnsThePathsOfTheGroups(t *testing.T) {
	v2 := Support{Mode: V2, Root: "/cg", Controllers: []string{"memory", "pids"}}
	v1Groups := func(parent, cpuset string) map[string]string {
		return map[string]string{
			"freezer": "/cg/freezer/" + parent + "/a.web", "memory": "/cg/memory/" + parent + "/a.web", "cpu": "/cg/cpu/" +
				parent + "/a.web",
			"pids": "/cg/pids/" + parent + "/a.web", "cpuacct": "/cg/cpuacct/" + parent + "/a.web", "cpuset": cpuset,
		}
	}
	cases := []struct {
		name   string
		s      Support
		cpuset string
		want   Group
	}{
		{"v2 takes the scope as it is and owns nothing", v2, "/cg/nomad.slice/share.slice/a.web.scope",
			Group{Mode: V2, Path: "/cg/nomad.slice/share.slice/a.web.scope", Controllers: []string{"memory", "pids"}}},
		{"v1 adds pids and cpuacct", v1Support(""), "/cg/cpuset/nomad/share",
			Group{Mode: V1, V1: v1Groups("nomad", "/cg/cpuset/nomad/share"),
				Owned: []string{"/cg/pids/nomad/a.web", "/cg/cpuacct/nomad/a.web"}}},
		{"hybrid adds a cgroup2 directory", v1Support("/cg/unified"), "/cg/cpuset/nomad/reserve/a.web",
			Group{Mode: V1, V1: v1Groups("nomad", "/cg/cpuset/nomad/reserve/a.web"), Unified: "/cg/unified/nomad/a.web",
				Owned: []string{"/cg/unified/nomad/a.web", "/cg/pids/nomad/a.web", "/cg/cpuacct/nomad/a.web"}}},
		{"v1 below another parent", v1Support(""), "/cg/cpuset/tenant/nomad/reserve/a.web",
			Group{Mode: V1, V1: v1Groups("tenant/nomad", "/cg/cpuset/tenant/nomad/reserve/a.web"),
				Owned: []string{"/cg/pids/tenant/nomad/a.web", "/cg/cpuacct/tenant/nomad/a.web"}}},
		{"v2 below a parent of ours", v2, "/cg/outrider-tasks-x.slice/a.web.scope",
			Group{Mode: V2, Path: "/cg/outrider-tasks-x.slice/a.web.scope", Controllers: []string{"memory", "pids"},
				Owned: []string{"/cg/outrider-tasks-x.slice/a.web.scope"}}},
		{"v1 below a parent of ours", Support{Mode: V1, Root: "/cg", Mounts: map[string]string{
			"freezer": "/cg/freezer", "cpu": "/cg/cpu,cpuacct", "cpuacct": "/cg/cpu,cpuacct", "cpuset": "/cg/cpuset"}},
			"/cg/cpuset/outrider-tasks-x/share",
			Group{Mode: V1, V1: map[string]string{"freezer": "/cg/freezer/outrider-tasks-x/a.web",
				"cpu": "/cg/cpu,cpuacct/outrider-tasks-x/a.web", "cpuacct": "/cg/cpu,cpuacct/outrider-tasks-x/a.web"},
				Owned: []string{"/cg/freezer/outrider-tasks-x/a.web", "/cg/cpu,cpuacct/outrider-tasks-x/a.web"}}},
		{"no path from Nomad", v2, "", Group{Mode: None}},
		{"no cgroups", Support{Mode: None}, "/cg/nomad.slice/share.slice/a.web.scope", Group{Mode: None}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := Plan(c.s, c.cpuset, "a", "web")
			test.Eq(t, c.want, got)
			b, err := json.Marshal(got)
			var back Group
			must.NoError(t, err, must.Sprint("saved and read"))
			must.NoError(t, json.Unmarshal(b, &back), must.Sprint("saved and read"))
			test.Eq(t, got, back, test.Sprint("saved and read"))
		})
	}
	g := Plan(v1Support(""), "/cg/cpuset/nomad/share", "a", "../web")
	test.Eq(t, None, g.Mode, test.Sprintf("planned for a name with a slash: %+v", g))
}

func TestLeaf_IsBesideTheGroupsOfTasks(t *testing.T) {
	cases := []struct {
		name   string
		s      Support
		cpuset string
		want   Group
	}{
		{"v2: beside share.slice", Support{Mode: V2, Root: "/cg", Own: "/cg/n.slice/agent"},
			"/cg/n.slice/share.slice/a.web.scope",
			Group{Mode: V2, Leaf: true, Home: "/cg/n.slice/agent", Path: "/cg/n.slice/outrider.scope",
				Owned: []string{"/cg/n.slice/outrider.scope"}}},
		{"v2: no task known yet", Support{Mode: V2, Root: "/cg"}, "",
			Group{Mode: V2, Leaf: true, Path: "/cg/nomad.slice/outrider.scope",
				Owned: []string{"/cg/nomad.slice/outrider.scope"}}},
		{"hybrid: where systemd looks", v1Support("/cg/unified"), "/cg/cpuset/nomad/share",
			Group{Mode: V1, Leaf: true, V1: map[string]string{"systemd": "/cg/systemd/nomad/outrider"},
				Unified: "/cg/unified/nomad/outrider",
				Owned:   []string{"/cg/systemd/nomad/outrider", "/cg/unified/nomad/outrider"}}},
		{"v1 without systemd has no place for it", Support{Mode: V1, Root: "/cg"}, "", Group{Mode: None}},
		{"no cgroups", Support{Mode: None}, "", Group{Mode: None}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			test.Eq(t, c.want, Leaf(c.s, c.cpuset, "outrider"))
		})
	}
}

func TestPlan_UsesControllersOfTheScope(t *testing.T) {
	root := fixture(t, map[string]string{
		"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.procs": "",
		"nomad.slice/cgroup.procs": "", "nomad.slice/cgroup.subtree_control": "", // made by us for a leaf, delegates nothing
		"other.slice/share.slice/a.web.scope/cgroup.controllers": "io memory pids\n",
	})
	s := detect(root, []byte("0::/\n"), 0)
	g := Plan(s, filepath.Join(root, "other.slice/share.slice/a.web.scope"), "a", "web")
	test.SliceEqOp(t, []string{"memory", "pids"}, g.Controllers)
	g = Plan(s, filepath.Join(root, "other.slice/share.slice/a.web.scope"), "a", "web", IO)
	test.SliceEqOp(t, []string{"memory", "pids", "io"}, g.Controllers)
	g = Plan(s, filepath.Join(root, "nomad.slice/share.slice/a.web.scope"), "a", "web", IO) // not made by Nomad yet
	test.SliceEmpty(t, g.Controllers)
}
