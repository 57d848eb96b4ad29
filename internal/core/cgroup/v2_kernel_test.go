// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// v2Task makes a scope as Nomad does, in the machine's cgroup2 hierarchy. The scope has no controllers, so it cannot be
// used to test limits.
func v2Task(t *testing.T) Group {
	t.Helper()
	s := Detect("")
	root := s.Unified
	if s.Mode == V2 {
		root = s.Root
	}
	if root == "" {
		t.Skipf("needs a writable cgroup2 hierarchy; here the mode is %s. %s", s.Mode, s.Missing)
	}
	g := Group{Mode: V2, Path: filepath.Join(root, fmt.Sprintf("outrider-test-%d.scope", os.Getpid()))}
	must.NoError(t, os.Mkdir(g.Path, 0o755))
	t.Cleanup(func() {
		test.NoError(t, g.Kill())
		test.NoError(t, g.Remove())
		if err := unix.Rmdir(g.Path); err != nil { // as Nomad does; Rmdir fails if Remove has left a sub-group
			t.Errorf("failed to remove the scope: %v", err)
		}
	})
	return g
}

func TestV2OpenDir_ClonesATaskIntoItsScope(t *testing.T) {
	g := v2Task(t)
	must.NoError(t, g.Create(Limits{}))
	cmd := start(t, g, "exec sleep 60")
	if pids, err := g.Procs(); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("processes: %v, %v; want %d", pids, err, cmd.Process.Pid)
	}
	s, err := g.Stats()
	must.NoError(t, err, must.Sprintf("stats: %+v", s))
	must.True(t, s.CPUTotal.Known, must.Sprintf("stats: %+v", s))
	test.False(t, s.Usage.Known, test.Sprintf("stats: %+v", s))
	running(t, cmd, "sleep")
	must.NoError(t, g.Signal(unix.SIGTERM))
	cmd.Wait()
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	test.Eq(t, syscall.SIGTERM, ws.Signal(), test.Sprintf("ended by %v", ws))
	empty, err := g.Empty()
	must.NoError(t, err, must.Sprintf("empty: %v", empty))
	test.True(t, empty, test.Sprintf("empty: %v", empty))
}

func TestV2Kill_KillsAWholeProcessTree(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprintf("frozen=%v", frozen), func(t *testing.T) {
			g := v2Task(t)
			must.NoError(t, g.Create(Limits{}))
			cmd := start(t, g, daemons)
			testsupport.Eventually(t, "the five sleep", func() bool { return countSleeps(t, g) == 5 && countProcs(t, g) == 5 })
			inner := filepath.Join(g.Path, "inner")
			must.NoError(t, os.Mkdir(inner, 0o755))
			must.NoError(t, writeFile(inner+"/cgroup.procs", fmt.Sprint(cmd.Process.Pid)))
			n := countProcs(t, g)
			test.Eq(t, 5, n, test.Sprintf("%d processes, one of them in a group below; want 5", n))
			if frozen {
				must.NoError(t, writeFile(g.Path+"/cgroup.freeze", "1"))
			}
			must.NoError(t, g.Kill())
			n = countProcs(t, g)
			test.Eq(t, 0, n, test.Sprintf("%d processes are left", n))
			if err := g.Create(Limits{}); err != nil { // as the next run of the task does
				t.Fatal(err)
			}
			if b := mustRead(t, g.Path+"/cgroup.freeze"); strings.TrimSpace(string(b)) != "0" || exists(inner) {
				t.Errorf("the next run would find: frozen %s, inner group %v", b, exists(inner))
			}
			running(t, start(t, g, "exec sleep 60"), "sleep")
		})
	}
}
