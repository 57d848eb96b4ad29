// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestLaunch_HungFileSystemDelaysOnlyOneStart(t *testing.T) {
	nothingLeft(t)
	dir := testsupport.HungDir(t)
	for name, c := range map[string]struct {
		spec  Spec
		want  string
		stage Stage
	}{
		"program": {
			Spec{Command: task.Command{Path: dir + "/prog", Dir: "/"}},
			"command " + quote(dir+"/prog") + " does not respond: its file system hangs", StageExec,
		},
		"program to look for in the task's directory": {
			Spec{Command: task.Command{Path: "prog", Dir: "/", Lookup: []string{dir}}},
			`command "prog" does not respond: its file system hangs`, StageProgram,
		},
		"program to look for in PATH": {
			Spec{Command: task.Command{Path: "prog", Dir: "/", Env: []string{"PATH=/nowhere:" + dir}}},
			`command "prog" does not respond: its file system hangs`, StageProgram,
		},
		"working directory": {
			Spec{Command: task.Command{Path: "/bin/true", Dir: dir + "/dir"}},
			"work_dir " + quote(dir+"/dir") + " does not respond: its file system hangs", StageWorkDir,
		},
		"network namespace": {
			Spec{Command: task.Command{Path: "/bin/true", Dir: "/", NetworkNamespace: dir + "/ns"}},
			"network namespace " + quote(dir+"/ns") + " does not respond: its file system hangs", StageNetwork,
		},
		"device": {
			Spec{Command: task.Command{Path: "/bin/true", Dir: "/", Devices: []task.Device{{HostPath: dir + "/tty",
				TaskPath: "/dev/tty"}}}},
			`devices of command "/bin/true" do not respond: a file system hangs`, StageDevices,
		},
	} {
		t.Run(name, func(t *testing.T) {
			nothingLeft(t)
			p, r, err := start(&c.spec, nil)
			must.NoError(t, err)
			defer r.Close()
			ctx, giveUp := context.WithCancel(context.Background())
			defer giveUp()
			result := make(chan error, 1)
			go func() { result <- p.Started(ctx) }()
			waitForStage(t, p.PID, c.stage)

			runtime.GC() // the garbage collector would block if the fork still stopped the world
			for range 20 {
				e, err := run(shell("exit 4"), nil)
				must.NoError(t, err, must.Sprint("another start"))
				test.Eq(t, 4, e.status.ExitStatus(), test.Sprint("another start"))
			}
			select {
			case err := <-result:
				t.Fatalf("it did not hang: %v", err)
			default:
			}
			giveUp()
			err = <-result
			var e *Error
			must.True(t, errors.As(err, &e), must.Sprintf("got %+v", err))
			must.Eq(t, c.want, e.Message, must.Sprintf("got %+v", err))
			must.Eq(t, c.stage, e.Stage, must.Sprintf("got %+v", err))
			test.Eq(t, unix.ECANCELED, e.Errno, test.Sprintf("got %+v", err))
			if err := unix.Kill(p.PID, 0); err != unix.ESRCH {
				t.Errorf("its process still exists: %v", err)
			}
		})
	}
}

func TestLaunch_KillsAStartThatTakesTooLong(t *testing.T) {
	nothingLeft(t)
	p, r, err := start(&Spec{Command: task.Command{Path: testsupport.HungDir(t) + "/prog", Dir: "/"}}, nil)
	must.NoError(t, err)
	defer r.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	test.ErrorIs(t, p.Started(ctx), unix.ETIMEDOUT)
	if err := unix.Kill(p.PID, 0); err != unix.ESRCH {
		t.Errorf("its process still exists: %v", err)
	}
}

// waitForStage returns when the launcher has been blocked in a step for a while. A launcher that only waits for a
// processor has the state "running", proc_pid_stat(5).
func waitForStage(t *testing.T, pid int, s Stage) {
	t.Helper()
	stat, waits := "", 0
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		stat = string(b)
		if name := "(" + processName(s) + ") "; strings.Contains(stat, name+"S ") || strings.Contains(stat, name+"D ") {
			waits++
		} else {
			waits = 0
		}
		if waits == 10 {
			return
		}
	}
	t.Fatalf("the launcher does not wait in step %q: %s", s, stat)
}

func TestLaunch_ReportsNoStartAfterAKillDuringExecve(t *testing.T) {
	nothingLeft(t)
	dir := testsupport.HungDir(t)
	for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		p, r, err := start(&Spec{Command: task.Command{Path: dir + "/prog", Dir: "/"}}, nil)
		must.NoError(t, err)
		result := make(chan error, 1)
		go func() { result <- p.Started(context.Background()) }()
		waitForStage(t, p.PID, StageExec)
		must.NoError(t, unix.Kill(p.PID, sig))
		if sig != unix.SIGKILL { // the launcher's Go runtime catches the signal, but can't act during execve
			waitForStage(t, p.PID, StageExec)
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
		want := "was killed (SIGKILL) before it ran"
		test.ErrorContains(t, <-result, want, test.Sprint(sig))
		r.Close()
	}
}

func TestLaunch_InventsNoExitCode(t *testing.T) {
	nothingLeft(t)
	p, r, err := start(&Spec{Command: task.Command{Path: "/bin/true", Dir: "/"}}, nil)
	must.NoError(t, err)
	defer r.Close()
	must.NoError(t, unix.Kill(p.PID, unix.SIGKILL))
	_, err = unix.Wait4(p.PID, nil, 0, nil) // as if another goroutine had reaped the process
	must.NoError(t, err)
	test.ErrorContains(t, p.Started(t.Context()), "for an unknown reason")
}

func TestLaunch_JoinsCgroupV1(t *testing.T) {
	testsupport.NeedRoot(t)
	nothingLeft(t)
	dir := fmt.Sprintf("/sys/fs/cgroup/pids/outrider-test-launch-%d", os.Getpid())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no cgroup v1 pids controller: %v", err)
	}
	defer removeCgroup(t, dir)
	must.NoError(t, os.WriteFile(dir+"/pids.max", []byte("1"), 0))
	for range 100 {
		spec := &Spec{Command: task.Command{Path: "/bin/cat", Args: []string{"/proc/self/cgroup"}, Dir: "/"},
			TasksFiles: []string{dir + "/tasks"}}
		e := mustRun(t, spec)
		must.StrContains(t, e.out, "pids:/")
		must.StrContains(t, e.out, "/"+filepath.Base(dir)+"\n")
	}
}

func removeCgroup(t *testing.T, dir string) {
	t.Helper()
	var err error
	// the kernel takes a moment to remove a dead process from the cgroup
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = unix.Rmdir(dir); err == nil {
			return
		}
	}
	t.Errorf("failed to remove cgroup: %v", err)
}

// cgroup2 creates a cgroup in the cgroup v2 hierarchy, and opens its directory.
func cgroup2(t *testing.T) *os.File {
	t.Helper()
	testsupport.NeedRoot(t)
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(root + "/cgroup.procs"); err != nil {
			continue
		}
		dir := fmt.Sprintf("%s/outrider-test-launch-%d", root, os.Getpid())
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no cgroup can be made: %v", err)
		}
		t.Cleanup(func() { removeCgroup(t, dir) })
		f, err := os.Open(dir)
		must.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	t.Skip("no cgroup v2 hierarchy is mounted")
	return nil
}

func TestLaunch_StartsInCgroupV2(t *testing.T) {
	nothingLeft(t)
	group := cgroup2(t)
	e, err := run(&Spec{Command: task.Command{Path: "/bin/cat", Args: []string{"/proc/self/cgroup"}, Dir: "/"}}, group)
	must.NoError(t, err)
	must.StrContains(t, e.out, "0::")
	test.StrContains(t, e.out, "/"+filepath.Base(group.Name())+"\n")
}

func TestLaunch_RefusesAFrozenCgroup(t *testing.T) {
	nothingLeft(t)
	group := cgroup2(t)
	freeze := group.Name() + "/cgroup.freeze"
	if err := os.WriteFile(freeze, []byte("1"), 0); err != nil {
		t.Skipf("cgroups can't be frozen here: %v", err)
	}
	_, err := run(shell("exit 0"), group)
	test.EqError(t, err, "cgroup "+group.Name()+" is frozen")
	_, err = StartInit(nil, group)
	test.EqError(t, err, "cgroup "+group.Name()+" is frozen", test.Sprint("the init of process ids"))
	must.NoError(t, os.WriteFile(freeze, []byte("0"), 0))
	_, err = run(shell("exit 0"), group)
	test.NoError(t, err, test.Sprint("after the thaw"))
}

func TestLauncher_ExplainsItselfWhenStartedByHand(t *testing.T) {
	cmd := exec.Command(self, "launch")
	out, err := cmd.CombinedOutput()
	if err == nil || string(out) != "this program is internal: only the supervisor starts it\n" {
		t.Errorf("got %q, %v", out, err)
	}
}
