package cgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// leaveEnv makes the test binary give up root, join the leaf that it names as
// JSON, leave it and remove it.
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

func TestLeaf_OfADelegatedAgentIsLeftAndRemoved(t *testing.T) {
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
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer removeTree(dir)
		for _, path := range []string{dir, dir + "/cgroup.procs"} {
			if err := os.Chown(path, 65534, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	g := Leaf(Support{Mode: V2, Root: root, Own: own}, filepath.Join(parent, "share.slice", "x.scope"), "leaf")
	text, err := json.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := Group{Mode: V2, Path: own}.OpenDir()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), leaveEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if exists(g.Path) {
		t.Errorf("left behind: %s", g.Path)
	}
}

func TestLeaf_IsJoinedLeftAndRemoved(t *testing.T) {
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

func TestLeaf_OfAKilledSupervisorIsReplaced(t *testing.T) {
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
