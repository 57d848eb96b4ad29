// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// joinEnv makes the test binary join v1 groups, as the launcher does, and exec its arguments. The variable lists the
// groups' tasks files.
const joinEnv = "OUTRIDER_TEST_JOIN"

// detectEnv makes the test binary call remount with the variable's value and print the result of Detect.
const detectEnv = "OUTRIDER_TEST_DETECT"

func init() {
	if how, ok := os.LookupEnv(detectEnv); ok {
		if err := remount(how); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(125)
		}
		json.NewEncoder(os.Stdout).Encode(Detect(""))
		os.Exit(0)
	}
	files, ok := os.LookupEnv(joinEnv)
	if !ok {
		return
	}
	runtime.LockOSThread() // "0" moves only the writing thread, which must also call exec
	for _, file := range filepath.SplitList(files) {
		if err := writeFile(file, "0"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(125)
		}
	}
	os.Unsetenv(joinEnv)
	fmt.Fprintln(os.Stderr, syscall.Exec(os.Args[1], os.Args[1:], os.Environ()))
	os.Exit(125)
}

// v1Task makes the groups that Nomad makes for a task on v1, and returns the planned Group. At the end of the test it
// kills the task, checks that Remove leaves none of our directories, and removes Nomad's.
func v1Task(t testing.TB, optional ...string) Group {
	t.Helper()
	s := Detect("")
	if s.Mode != V1 || s.Mounts["freezer"] == "" || s.Mounts["memory"] == "" || s.Mounts["cpu"] == "" ||
		s.Mounts["cpuset"] == "" {
		t.Skipf("needs root and the cgroup v1 hierarchies freezer, memory, cpu and cpuset; here the mode is %s. %s", s.Mode,
			s.Missing)
	}
	parent := fmt.Sprintf("outrider-test-%d", os.Getpid())
	share := filepath.Join(s.Root, "cpuset", parent, "share")
	g := Plan(s, share, fmt.Sprintf("alloc%d", time.Now().UnixNano()), "web", optional...)
	var made []string
	for _, controller := range []string{"freezer", "memory", "cpu"} {
		made = append(made, filepath.Dir(g.V1[controller]), g.V1[controller])
	}
	made = append(made, filepath.Dir(share), share)
	for _, dir := range made {
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		if strings.HasPrefix(dir, filepath.Dir(share)) {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				b, err := readFile(filepath.Join(s.Root, "cpuset", file))
				must.NoError(t, err)
				must.NoError(t, writeFile(filepath.Join(dir, file), strings.TrimSpace(string(b))))
			}
		}
	}
	t.Cleanup(func() {
		test.NoError(t, g.Kill())
		test.NoError(t, g.Remove())
		for _, dir := range g.Owned {
			must.False(t, exists(dir), must.Sprintf("left behind: %s or its parent", dir))
			test.False(t, exists(filepath.Dir(dir)), test.Sprintf("left behind: %s or its parent", dir))
		}
		for _, dir := range slices.Backward(made) {
			test.NoError(t, removeTree(dir))
		}
	})
	return g
}

// start runs a shell command in the group, in the same way as a task.
func start(t testing.TB, g Group, script string) *exec.Cmd {
	t.Helper()
	dir, err := g.OpenDir()
	must.NoError(t, err)
	cmd := exec.Command("/proc/self/exe", "/bin/sh", "-c", script)
	cmd.Env = append(os.Environ(), joinEnv+"="+strings.Join(g.TasksFiles(), ":"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if dir != nil {
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

func countProcs(t testing.TB, g Group) int {
	pids, err := g.Procs()
	must.NoError(t, err)
	return len(pids)
}

// countSleeps counts the processes of the program sleep. It does not count the short-lived shells that start them.
func countSleeps(t testing.TB, g Group) (n int) {
	pids, err := g.Procs()
	must.NoError(t, err)
	for _, pid := range pids {
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(comm) == "sleep\n" {
			n++
		}
	}
	return n
}

// withoutUnified returns g as it would be on a machine without cgroup2, so without cgroup.kill.
func withoutUnified(g Group) Group {
	g.Owned = slices.DeleteFunc(slices.Clone(g.Owned), func(dir string) bool { return dir == g.Unified })
	g.Unified = ""
	return g
}

// running waits until the process runs the program with the given name. By then, the process has joined all groups.
func running(t testing.TB, cmd *exec.Cmd, name string) {
	t.Helper()
	testsupport.Eventually(t, name+" runs", func() bool {
		return string(mustRead(t, fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))) == name+"\n"
	})
}

// remount changes the mounts at /sys/fs/cgroup. The caller has its own mount namespace. "ro" makes all hierarchies
// read-only, "v2" mounts cgroup2 in place of v1, and "v2,ro" mounts it read-only.
func remount(how string) error {
	if how == "" {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if how == "v2" || how == "v2,ro" {
		if err := unix.Mount(defaultRoot+"/unified", defaultRoot, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if how == "v2,ro" {
		return unix.Mount("", defaultRoot, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if how == "ro" {
		for name := range hierarchies(defaultRoot) {
			dir := filepath.Join(defaultRoot, name)
			if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// This test does not make Nomad's groups, which do not exist on a host without an agent.
func TestCreate_WorksWithoutNomadsGroups(t *testing.T) {
	s := Detect("")
	if s.Mode == None || os.Geteuid() != 0 {
		t.Skipf("needs root and cgroups. %s", s.Missing)
	}
	parent := fmt.Sprintf("outrider-tasks-test-%d", os.Getpid())
	path := filepath.Join(s.Root, "cpuset", parent, "share")
	if s.Mode == V2 {
		path = filepath.Join(s.Root, parent+".slice", "a.web.scope")
	}
	g := Plan(s, path, "a", "web")
	t.Cleanup(func() {
		test.NoError(t, g.Kill())
		test.NoError(t, g.Remove())
		for _, dir := range g.Owned {
			test.False(t, exists(filepath.Dir(dir)), test.Sprintf("the parent of %s is left", dir))
		}
	})
	must.NoError(t, g.Create(Limits{MemoryMax: 64 << 20}))
	start(t, g, "exec sleep 60")
	must.Eq(t, 1, countProcs(t, g))
	file := filepath.Join(g.V1["memory"], "memory.limit_in_bytes")
	if s.Mode == V2 {
		file = filepath.Join(g.Path, "memory.max")
	}
	limit, err := readFile(file)
	must.NoError(t, err)
	must.Eq(t, fmt.Sprint(64<<20), strings.TrimSpace(string(limit)))
}
