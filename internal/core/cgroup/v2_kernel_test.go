package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// v2Task makes a scope as Nomad would, in whatever cgroup2 hierarchy there is.
// It has no controllers in it, so limits cannot be tested with it.
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
	if err := os.Mkdir(g.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		if err := unix.Rmdir(g.Path); err != nil { // as Nomad does, so nothing may be below
			t.Errorf("failed to remove the scope: %v", err)
		}
	})
	return g
}

func TestV2OpenDir_ClonesATaskIntoItsScope(t *testing.T) {
	g := v2Task(t)
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, "exec sleep 60")
	if pids, err := g.Procs(); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("processes: %v, %v; want %d", pids, err, cmd.Process.Pid)
	}
	if s, err := g.Stats(); err != nil || !s.CPUTotal.Known || s.Usage.Known {
		t.Errorf("stats: %+v, %v", s, err)
	}
	running(t, cmd, "sleep")
	if err := g.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGTERM {
		t.Errorf("ended by %v", ws)
	}
	if empty, err := g.Empty(); err != nil || !empty {
		t.Errorf("empty: %v, %v", empty, err)
	}
}

func TestV2Kill_EndsATree(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprintf("frozen=%v", frozen), func(t *testing.T) {
			g := v2Task(t)
			if err := g.Create(Limits{}); err != nil {
				t.Fatal(err)
			}
			cmd := start(t, g, daemons)
			eventually(t, "the five sleep", func() bool { return countSleeps(t, g) == 5 && countProcs(t, g) == 5 })
			inner := filepath.Join(g.Path, "inner")
			if err := os.Mkdir(inner, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := writeFile(inner+"/cgroup.procs", fmt.Sprint(cmd.Process.Pid)); err != nil {
				t.Fatal(err)
			}
			if n := countProcs(t, g); n != 5 {
				t.Errorf("%d processes, one of them in a group below; want 5", n)
			}
			if frozen {
				if err := writeFile(g.Path+"/cgroup.freeze", "1"); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.Kill(); err != nil {
				t.Fatal(err)
			}
			if n := countProcs(t, g); n != 0 {
				t.Errorf("%d processes are left", n)
			}
			if err := g.Create(Limits{}); err != nil { // the next run
				t.Fatal(err)
			}
			if b := mustRead(t, g.Path+"/cgroup.freeze"); strings.TrimSpace(string(b)) != "0" || exists(inner) {
				t.Errorf("the next run would find: frozen %s, inner group %v", b, exists(inner))
			}
			running(t, start(t, g, "exec sleep 60"), "sleep")
		})
	}
}
