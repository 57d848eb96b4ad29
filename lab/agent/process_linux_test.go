package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// started starts a command that ends with the test, and reaps it.
func started(t *testing.T, env []string, argv ...string) Process {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-done })
	p, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProcesses_AreThoseOfTheDirectory(t *testing.T) {
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	if err := install(sleep, program); err != nil {
		t.Fatal(err)
	}
	marked := started(t, []string{markVar + "=" + dir}, "sleep", "100")
	below := started(t, nil, program, "100")
	parent := started(t, []string{markVar + "=" + dir}, "sh", "-c", "env -i "+sleep+" 101 & wait")
	strangers := []Process{
		started(t, []string{markVar + "=" + dir + "2"}, "sleep", "100"), // another lab
		started(t, nil, "sh", "-c", "sleep 100; : "+dir),                // only names the directory
	}

	var found []Process
	child := false // it is one before it executes its program
	for end := time.Now().Add(time.Minute); !child && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if found, err = processes(dir); err != nil {
			t.Fatal(err)
		}
		for _, p := range found {
			child = child || strings.HasSuffix(p.command(), "sleep 101")
		}
	}
	for _, p := range found {
		for _, s := range strangers {
			if p.PID == s.PID {
				t.Errorf("found a stranger: %s", p.command())
			}
		}
	}
	if !child || len(found) != 4 {
		t.Errorf("found %v, want two sleeps, a shell and its child with an empty environment", found)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := killAll(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(found, marked, below, parent) {
		if p.alive() {
			t.Errorf("%d is alive", p.PID)
		}
	}
	for _, s := range strangers {
		if !s.alive() {
			t.Errorf("a stranger was killed")
		}
	}
}

func TestProcess_DoesNotSignalAReusedPid(t *testing.T) {
	p := started(t, nil, "sleep", "100")
	other := p
	other.Start++ // the process that had this pid before
	if other.alive() {
		t.Error("another start time is taken for the same process")
	}
	if err := other.signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	other = p
	other.Boot = "before the reboot"
	if err := other.signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	time.Sleep(50 * time.Millisecond)
	if !p.alive() {
		t.Error("a process that has the pid now was killed")
	}
}

func TestProcess_ZombieIsNotAlive(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	p, err := identify(cmd.Process.Pid)
	if err != nil || !p.alive() {
		t.Fatal(p, err)
	}
	cmd.Process.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.gone(ctx); err != nil { // not reaped yet
		t.Error(err)
	}
}

func TestInstall_ReplacesARunningPlugin(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "plugin")
	sleep, _ := exec.LookPath("sleep")
	if err := install(sleep, path); err != nil {
		t.Fatal(err)
	}
	p := started(t, nil, path, "100")
	next := filepath.Join(dir, "next")
	os.WriteFile(next, []byte("#!/bin/sh\necho new\n"), 0o644)
	if err := install(next, path); err != nil {
		t.Fatal(err) // text file busy
	}
	if out, err := exec.Command(path).Output(); err != nil || string(out) != "new\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if !p.alive() {
		t.Error("the running one was disturbed")
	}
}

func TestInstall_AllowsAnExecAtOnce(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	if err := os.WriteFile(src, []byte("#!/bin/sh\n"+strings.Repeat("#\n", 1<<20)), 0o755); err != nil {
		t.Fatal(err)
	}
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
		if err := install(src, path); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(path)
		if err := cmd.Start(); err != nil {
			t.Fatalf("installation %d: %v", i, err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		os.Remove(path)
	}
}

func TestFreePorts_ReturnsEachPortOnce(t *testing.T) {
	given := map[int]bool{}
	for range 200 {
		ports, err := freePorts(3)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ports {
			if given[p] {
				t.Fatalf("port %d is given to two agents", p)
			}
			given[p] = true
		}
	}
}

func TestOfAgent_RecognizesItsProcesses(t *testing.T) {
	for _, tc := range []struct {
		cmdline, environ string
		want             bool
	}{
		{"/usr/bin/nomad\x00agent\x00-dev\x00", "", true},
		{"/root/.cache/outrider/nomad-1.11.3-amd64\x00agent\x00-config\x00x\x00", "", true},
		{"/bin/sleep\x00600\x00", "A=1\x00" + markVar + "=/lab\x00", true}, // its agent is down for a moment
		{"nomad\x00job\x00run\x00x\x00", "A=1\x00", false},
		{"/usr/sbin/sshd\x00agent\x00", "X" + markVar + "=1\x00", false},
		{"", "", false},
	} {
		if got := ofAgent(strings.Split(tc.cmdline, "\x00"), strings.Split(tc.environ, "\x00")); got != tc.want {
			t.Errorf("%q, %q: %v", tc.cmdline, tc.environ, got)
		}
	}
}

func TestStart_WaitsWhileCgroupsAreRemoved(t *testing.T) {
	if _, err := os.Stat(cgroupRoot); err != nil {
		t.Skip(err)
	}
	started := make(chan error, 1)
	err := locked(t.Context(), unix.LOCK_EX, func() error {
		go func() {
			started <- startBesideRemovals(t.Context(), exec.Command("/no/such/program"))
		}()
		select {
		case err := <-started:
			t.Errorf("it started meanwhile: %v", err)
			started <- err
		case <-time.After(100 * time.Millisecond):
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-started; !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
