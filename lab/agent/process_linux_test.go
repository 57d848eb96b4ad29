// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// started starts a command that ends with the test, and reaps it.
func started(t *testing.T, env []string, argv ...string) process {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	must.NoError(t, cmd.Start())
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-done })
	id, err := task.Identify(cmd.Process.Pid)
	must.NoError(t, err)
	return process{id}
}

func TestProcesses_FindsProcessesOfTheDirectory(t *testing.T) {
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	must.NoError(t, err)
	program := filepath.Join(dir, "program")
	must.NoError(t, install(sleep, program))
	marked := started(t, []string{markVar + "=" + dir}, "sleep", "100")
	below := started(t, nil, program, "100")
	parent := started(t, []string{markVar + "=" + dir}, "sh", "-c", "env -i "+sleep+" 101 & wait")
	strangers := []process{
		started(t, []string{markVar + "=" + dir + "2"}, "sleep", "100"), // another lab
		started(t, nil, "sh", "-c", "sleep 100; : "+dir),                // not of the agent: dir is only an argument
	}

	var found []process
	child := false // whether sh's child has executed its program
	for end := time.Now().Add(time.Minute); !child && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		ids, err := Processes(dir)
		must.NoError(t, err)
		found = nil
		for _, id := range ids {
			found = append(found, process{id})
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id.PID))
			child = child || strings.HasSuffix(string(text), "sleep\x00101\x00")
		}
	}
	for _, p := range found {
		for _, s := range strangers {
			if p.PID == s.PID {
				t.Errorf("found an unrelated process: %d", p.PID)
			}
		}
	}
	must.True(t, child,
		must.Sprintf("found %v, want two sleeps, a shell and its child with an empty environment", found))
	test.SliceLen(t, 4, found,
		test.Sprintf("found %v, want two sleeps, a shell and its child with an empty environment", found))

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = killAll(ctx, dir)
	must.NoError(t, err)
	for _, p := range append(found, marked, below, parent) {
		test.False(t, p.alive(), test.Sprintf("%d is alive", p.PID))
	}
	for _, s := range strangers {
		test.True(t, s.alive(), test.Sprint("an unrelated process was killed"))
	}
}

func TestProcess_DoesNotSignalAReusedPid(t *testing.T) {
	p := started(t, nil, "sleep", "100")
	other := p
	other.Start++ // stands for another process with the same pid
	test.False(t, other.alive(), test.Sprint("another start time, but taken for the same process"))
	test.NoError(t, other.signal(unix.SIGKILL))
	other = p
	other.BootID = "before the reboot"
	test.NoError(t, other.signal(unix.SIGKILL))
	time.Sleep(50 * time.Millisecond)
	test.True(t, p.alive(), test.Sprint("a process that has the pid now was killed"))
}

func TestProcess_ZombieIsNotAlive(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	must.NoError(t, cmd.Start())
	defer cmd.Wait()
	id, err := task.Identify(cmd.Process.Pid)
	must.NoError(t, err)
	p := process{id}
	must.True(t, p.alive())
	cmd.Process.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.gone(ctx); err != nil { // returns before the zombie is reaped
		t.Error(err)
	}
}

func TestInstall_ReplacesARunningPlugin(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "plugin")
	sleep, _ := exec.LookPath("sleep")
	must.NoError(t, install(sleep, path))
	p := started(t, nil, path, "100")
	next := filepath.Join(dir, "next")
	os.WriteFile(next, []byte("#!/bin/sh\necho new\n"), 0o644)
	if err := install(next, path); err != nil {
		t.Fatal(err) // ETXTBSY if the running file were overwritten
	}
	out, err := exec.Command(path).Output()
	must.NoError(t, err, must.Sprintf("got %q", out))
	test.Eq(t, "new\n", string(out), test.Sprintf("got %q", out))
	test.True(t, p.alive(), test.Sprint("the running program was disturbed"))
}

func TestHostAgent_InstallsHostVolumePlugins(t *testing.T) {
	dir := t.TempDir()
	script := func(name, output string) string {
		path := filepath.Join(dir, name, "nomad-device-x")
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho "+output+"\n"), 0o755))
		return path
	}
	p := Plugin{Binary: script("old", "1"), HostVolume: "x", HostVolumeFile: "a = 1\n"}
	o := Options{Dir: filepath.Join(dir, "a"), Plugins: []Plugin{p}}
	a := newHost(&record{info: Info{Dir: o.Dir}})
	must.NoError(t, a.Reconfigure(o))

	entries, err := os.ReadDir(a.HostVolumePluginDir())
	must.NoError(t, err)
	must.SliceLen(t, 2, entries, must.Sprintf("got %v", entries))
	text, err := os.ReadFile(filepath.Join(a.HostVolumePluginDir(), "x.hcl"))
	must.NoError(t, err)
	test.Eq(t, "a = 1\n", string(text))
	output := func() string {
		out, err := exec.Command(filepath.Join(a.HostVolumePluginDir(), "x")).Output()
		must.NoError(t, err)
		return string(out)
	}
	must.Eq(t, "1\n", output())
	o.Plugins[0].Binary, o.Plugins[0].HostVolumeFile = script("new", "2"), "a = 2\n"
	must.NoError(t, a.Reconfigure(o))
	test.Eq(t, "2\n", output(), test.Sprint("after the plugin was replaced"))
}

func TestInstall_AllowsAnImmediateExec(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	must.NoError(t, os.WriteFile(src, []byte("#!/bin/sh\n"+strings.Repeat("#\n", 1<<20)), 0o755))
	done := make(chan struct{})
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					exec.Command("/bin/true").Run()
				}
			}
		})
	}
	defer others.Wait()
	defer close(done)
	for i := range 100 {
		path := filepath.Join(dir, fmt.Sprint(i))
		must.NoError(t, install(src, path))
		cmd := exec.Command(path)
		must.NoError(t, cmd.Start(), must.Sprintf("installation %d", i))
		cmd.Process.Kill()
		cmd.Wait()
		os.Remove(path)
	}
}

func TestFreePorts_ReturnsEachPortOnce(t *testing.T) {
	given := map[int]bool{}
	for range 200 {
		ports, err := FreePorts(3)
		must.NoError(t, err)
		for _, p := range ports {
			if given[p] {
				t.Fatalf("port %d is given to two agents", p)
			}
			given[p] = true
		}
	}
}

func TestCgroupMarks_CoverTasksSupervisorsAndAHost(t *testing.T) {
	state, data := t.TempDir(), t.TempDir()
	host := filepath.Join(state, "host")
	for _, dir := range []string{
		filepath.Join(state, "exec-lite/0123abcd-1-2-3-4"), filepath.Join(host, "remote/4567cdef-1-2-3-4"),
		filepath.Join(host, "runs"), filepath.Join(data, "alloc/11112222-3-4-5-6"), filepath.Join(data, "client"),
		filepath.Join(state, "exec-lite/-1-2-3-4"), filepath.Join(data, "alloc/----"), // refused: they match others' cgroups
	} {
		must.NoError(t, os.MkdirAll(dir, 0o755))
	}
	must.NoError(t, os.WriteFile(filepath.Join(data, "client/client-id"), []byte("89ab0123-1-2-3-4"), 0o600))
	tasks := fmt.Sprintf("outrider-tasks-%.4x", sha256.Sum256([]byte(host)))
	test.Eq(t, []string{"11112222-3-4-5-6", "-0123abcd", "-4567cdef", tasks}, cgroupMarks(data, state))
	test.SliceEmpty(t, cgroupMarks(t.TempDir(), t.TempDir()))
}
