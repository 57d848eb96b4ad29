// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// leaveEnv makes the test binary drop root, then join, leave and remove a leaf. The variable is the leaf's Group as
// JSON.
const leaveEnv = "OUTRIDER_TEST_LEAVE"

func init() {
	text, ok := os.LookupEnv(leaveEnv)
	if !ok {
		return
	}
	var g Group
	err := json.Unmarshal([]byte(text), &g)
	for _, step := range []func() error{
		func() error { return syscall.Setuid(65534) },
		func() error { return g.Create(Limits{}) },
		func() error { return g.Join(0) },
		g.Leave, g.Remove,
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func TestLeaf_IsRemovedByADelegatedAgent(t *testing.T) {
	s := Detect("")
	root := s.Unified
	if s.Mode == V2 {
		root = s.Root
	}
	if root == "" || os.Geteuid() != 0 {
		t.Skipf("needs root and a writable cgroup2 hierarchy; here the mode is %s. %s", s.Mode, s.Missing)
	}
	parent := filepath.Join(root, fmt.Sprintf("outrider-test-%d.slice", os.Getpid()))
	own := filepath.Join(parent, "agent.scope")
	for _, dir := range []string{parent, own} {
		must.NoError(t, os.Mkdir(dir, 0o755))
		defer removeTree(dir)
		for _, path := range []string{dir, dir + "/cgroup.procs"} {
			must.NoError(t, os.Chown(path, 65534, -1))
		}
	}
	g := Leaf(Support{Mode: V2, Root: root, Own: own}, filepath.Join(parent, "share.slice", "x.scope"), "leaf")
	text, err := json.Marshal(g)
	must.NoError(t, err)
	dir, err := Group{Mode: V2, Path: own}.OpenDir()
	must.NoError(t, err)
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), leaveEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.CombinedOutput()
	test.NoError(t, err, test.Sprintf("%v: %s", err, out))
	test.False(t, exists(g.Path), test.Sprintf("left behind: %s", g.Path))
}

func TestLeaf_CanBeJoinedAndLeftBeforeItsRemoval(t *testing.T) {
	s := Detect("")
	name := fmt.Sprintf("outrider-test-%d", os.Getpid())
	g := Leaf(s, filepath.Join(s.Root, "cpuset", name, "share"), name)
	if s.Mode != V1 || g.Mode == None {
		t.Skipf("needs root and a cgroup v1 hierarchy name=systemd or cgroup2; here the mode is %s. %s", s.Mode, s.Missing)
	}
	must.NoError(t, g.Create(Limits{}))
	defer func() { g.Leave(); g.Remove() }()
	home := string(mustRead(t, "/proc/self/cgroup"))
	must.NoError(t, g.Join(0))
	got := string(mustRead(t, "/proc/self/cgroup"))
	test.Eq(t, len(g.Owned), strings.Count(got, name+"/"+name), test.Sprintf("in these groups:\n%s", got))
	if err := g.Create(Limits{}); err != nil { // a supervisor that is upgraded in place does this
		t.Errorf("again: %v", err)
	}
	test.ErrorIs(t, g.Kill(), ErrSelf, test.Sprint("kill"))
	must.NoError(t, g.Leave())
	test.StrNotContains(t, string(mustRead(t, "/proc/self/cgroup")), name,
		test.Sprintf("not left; before:\n%safter", home))
	must.NoError(t, g.Remove())
	for _, dir := range g.Owned {
		if exists(filepath.Dir(dir)) {
			t.Errorf("left behind: %s", filepath.Dir(dir))
		}
	}
}

func TestLeaf_IsReplacedAfterAKill(t *testing.T) {
	s := Detect("")
	name := fmt.Sprintf("outrider-test-%d", os.Getpid())
	g := Leaf(s, filepath.Join(s.Root, "cpuset", name, "share"), name)
	if g.cgroup2() == "" {
		t.Skipf("needs a writable cgroup2 hierarchy; here the mode is %s. %s", s.Mode, s.Missing)
	}
	must.NoError(t, g.Create(Limits{}))
	defer g.Remove()
	cmd := start(t, Group{Mode: V2, Path: g.cgroup2()}, "exec sleep 60")
	running(t, cmd, "sleep")
	must.NoError(t, g.Create(Limits{}), must.Sprint("a process in the leaf was not spared"))
	test.Eq(t, 1, countProcs(t, g), test.Sprint("a process in the leaf was not spared"))
	must.NoError(t, g.Kill())
	cmd.Wait()
	must.NoError(t, g.Create(Limits{}))
	// unless Create has replaced the directory, the kernel immediately kills this process: see renew
	running(t, start(t, Group{Mode: V2, Path: g.cgroup2()}, "exec sleep 60"), "sleep")
	must.NoError(t, g.Kill())
	test.NoError(t, g.Remove())
}
