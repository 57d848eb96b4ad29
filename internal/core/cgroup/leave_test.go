package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLeafIsJoinedLeftAndRemoved(t *testing.T) {
	s := Detect("")
	name := fmt.Sprintf("outrider-test-%d", os.Getpid())
	g := Leaf(s, filepath.Join(s.Root, "cpuset", name, "share"), name)
	if s.Mode != V1 || g.Mode == None {
		t.Skipf("needs root and a cgroup v1 hierarchy name=systemd or cgroup2; here the mode is %s. %s", s.Mode, s.Missing)
	}
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	defer func() { g.Leave(); g.Remove() }()
	home := string(mustRead(t, "/proc/self/cgroup"))
	if err := g.Join(0); err != nil {
		t.Fatal(err)
	}
	if got := string(mustRead(t, "/proc/self/cgroup")); strings.Count(got, name+"/"+name) != len(g.Owned) {
		t.Errorf("in these groups:\n%s", got)
	}
	if err := g.Create(Limits{}); err != nil { // the supervisor, upgraded in place
		t.Errorf("again: %v", err)
	}
	if err := g.Kill(); !errors.Is(err, ErrSelf) {
		t.Errorf("kill: %v", err)
	}
	if err := g.Leave(); err != nil {
		t.Fatal(err)
	}
	if got := string(mustRead(t, "/proc/self/cgroup")); strings.Contains(got, name) {
		t.Errorf("not left; before:\n%safter:\n%s", home, got)
	}
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range g.Owned {
		if exists(filepath.Dir(dir)) {
			t.Errorf("left behind: %s", filepath.Dir(dir))
		}
	}
}

func TestLeafOfASupervisorThatWasKilledIsMadeAnew(t *testing.T) {
	s := Detect("")
	name := fmt.Sprintf("outrider-test-%d", os.Getpid())
	g := Leaf(s, filepath.Join(s.Root, "cpuset", name, "share"), name)
	if g.cgroup2() == "" {
		t.Skipf("needs a writable cgroup2 hierarchy; here the mode is %s. %s", s.Mode, s.Missing)
	}
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	defer g.Remove()
	cmd := start(t, Group{Mode: V2, Path: g.cgroup2()}, "exec sleep 60")
	running(t, cmd, "sleep")
	if err := g.Create(Limits{}); err != nil || countProcs(t, g) != 1 {
		t.Errorf("a process in the leaf was not spared: %v", err)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	// would be dead at once in the old directory: see renew
	running(t, start(t, Group{Mode: V2, Path: g.cgroup2()}, "exec sleep 60"), "sleep")
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}
