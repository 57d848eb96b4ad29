// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestDetect_ReportsTheUsableModeAndControllers(t *testing.T) {
	const all = "cpuset cpu io memory pids\n"
	v1 := map[string]string{}
	for _, c := range []string{"freezer", "memory", "cpu", "cpuacct", "cpuset", "pids", "systemd"} {
		v1[c+"/cgroup.procs"] = ""
	}
	with := func(m map[string]string, kv ...string) map[string]string {
		m = maps.Clone(m)
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	without := func(m map[string]string, name string) map[string]string {
		m = maps.Clone(m)
		delete(m, name)
		return m
	}
	v2 := map[string]string{
		"cgroup.controllers": all, "cgroup.procs": "",
		"nomad.slice/cgroup.procs":           "",
		"nomad.slice/cgroup.subtree_control": all,
	}

	cases := []struct {
		name        string
		files       map[string]string
		self        string
		euid        int
		mode        Mode
		controllers string
		missing     string // a part of Support.Missing; "" if it must be empty
	}{
		{name: "v2 with everything", files: v2,
			mode: V2, controllers: "memory cpu cpuset pids io"},
		{name: "v2 before Nomad has made its slice", files: map[string]string{"cgroup.controllers": all, "cgroup.procs": ""},
			mode: V2, controllers: "memory cpu cpuset pids io"},
		{name: "v2 where the slice delegates only some controllers", files: with(v2, "nomad.slice/cgroup.subtree_control",
			"cpu pids\n"),
			mode: V2, controllers: "cpu pids", missing: "no limits or statistics for memory, cpuset: these cgroup v2 " +
				"controllers are not available in "},
		{name: "v2 delegated, and the agent may move its processes", files: v2, self: "0::/nomad.slice/agent\n", euid: 1000,
			mode: V2, controllers: "memory cpu cpuset pids io"},
		{name: "v1 with everything", files: v1,
			mode: V1, controllers: "memory cpu cpuset pids"},
		{name: "hybrid", files: with(v1, "unified/cgroup.procs", ""),
			mode: V1, controllers: "memory cpu cpuset pids"},
		{name: "v1 without the memory controller", files: without(v1, "memory/cgroup.procs"),
			mode: V1, controllers: "cpu cpuset pids", missing: "no limits or statistics for memory:"},
		{name: "v1 without the freezer", files: without(v1, "freezer/cgroup.procs"),
			mode: V1, controllers: "memory cpu cpuset pids", missing: "Nomad itself cannot kill"},
		{name: "v1 and not root", files: v1, euid: 1000,
			mode: None, missing: "only by root, and the agent runs as user id 1000"},
		{name: "plain directories without a mount", files: map[string]string{"memory/": "", "cpu/": ""},
			mode: None, missing: "no cgroup file system is mounted at"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := fixture(t, c.files)
			if c.self == "" {
				c.self = "0::/\n"
			}
			s := detect(root, []byte(c.self), c.euid)
			must.Eq(t, c.mode, s.Mode,
				must.Sprintf("got mode %s, controllers %v, missing %q", s.Mode, s.Controllers, s.Missing))
			test.Eq(t, c.controllers, strings.Join(s.Controllers, " "),
				test.Sprintf("got mode %s, controllers %v, missing %q", s.Mode, s.Controllers, s.Missing))
			must.Eq(t, (s.Missing == ""), (c.missing == ""), must.Sprint("missing"))
			test.StrContains(t, s.Missing, c.missing, test.Sprint("missing"))
			test.StrNotContains(t, s.Missing, "\n", test.Sprint("more than a sentence"))
		})
	}

	t.Run("v2 where the slice was made for a supervisor, as on a host without an agent", func(t *testing.T) {
		root := fixture(t, with(v2, "nomad.slice/cgroup.subtree_control", ""))
		must.NoError(t, os.Chmod(filepath.Join(root, "nomad.slice"), 0o755|os.ModeSticky))
		s := detect(root, []byte("0::/\n"), 0)
		test.Eq(t, "memory cpu cpuset pids io", strings.Join(s.Controllers, " "))
		test.Eq(t, "", s.Missing)
	})
	t.Run("the root does not exist", func(t *testing.T) {
		s := Detect(filepath.Join(t.TempDir(), "cgroup"))
		must.Eq(t, None, s.Mode, must.Sprintf("got %+v", s))
		test.StrContains(t, s.Missing, "does not exist", test.Sprintf("got %+v", s))
	})
	t.Run("controllers mounted together have one directory", func(t *testing.T) {
		root := fixture(t, map[string]string{"cpu,cpuacct/cgroup.procs": "", "freezer/cgroup.procs": ""})
		for _, name := range []string{"cpu", "cpuacct"} {
			must.NoError(t, os.Symlink("cpu,cpuacct", filepath.Join(root, name)))
		}
		s := detect(root, nil, 0)
		must.NotEq(t, "", s.Mounts["cpu"], must.Sprintf("got %v", s.Mounts))
		must.Eq(t, s.Mounts["cpuacct"], s.Mounts["cpu"], must.Sprintf("got %v", s.Mounts))
		g := Plan(s, filepath.Join(root, "cpuset/nomad/share"), "alloc", "web")
		test.SliceNotContains(t, g.Owned, g.V1["cpu"], test.Sprint("Nomad's cpu group would be removed"))
		files := g.TasksFiles()
		test.SliceLen(t, 2, files,
			test.Sprintf("joined %v, want the freezer and the common directory once", files))
	})
}

func TestDetect_SeesRealMounts(t *testing.T) {
	here := Detect("")
	if os.Geteuid() != 0 || here.Mode != V1 || here.Unified == "" {
		t.Skipf("needs root and hybrid cgroups; here the mode is %s. %s", here.Mode, here.Missing)
	}
	cases := []struct {
		name    string
		how     string
		uid     uint32
		mode    Mode
		missing string
	}{
		{"as it is", "", 0, V1, ""},
		{"not root", "", 65534, None, "cgroup v1 can be used only by root, and the agent runs as user id 65534"},
		{"read-only", "ro", 0, None, "cgroup v1 cannot be used: the hierarchies in /sys/fs/cgroup are mounted read-only"},
		{"v2 read-only", "v2,ro", 0, None, "cgroup v2 cannot be used: /sys/fs/cgroup is mounted read-only"},
		{"v2 without controllers", "v2", 0, V2, "no limits or statistics for memory, cpu, cpuset, pids: these " +
			"cgroup v2 controllers are not available in /sys/fs/cgroup"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{detectEnv + "=" + c.how}
			cmd.Stderr = os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS,
				Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
			out, err := cmd.Output()
			must.NoError(t, err)
			var s Support
			must.NoError(t, json.Unmarshal(out, &s))
			must.Eq(t, c.mode, s.Mode)
			test.Eq(t, c.missing, s.Missing)
		})
	}
}

func TestCommonParent_ReturnsTheDeepest(t *testing.T) {
	for _, c := range [][3]string{
		{"/", "nomad.slice", "/"},
		{"/system.slice/nomad.service", "nomad.slice", "/"},
		{"/nomad.slice/agent", "nomad.slice", "/nomad.slice"},
		{"/../../init.scope", "nomad.slice", "/"},
	} {
		if got := commonParent(c[0], c[1]); got != c[2] {
			t.Errorf("commonParent(%q, %q) = %q, want %q", c[0], c[1], got, c[2])
		}
	}
}
