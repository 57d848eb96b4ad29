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

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// hungMount is a FUSE file system without a server: a process that touches it waits
// indefinitely. The test itself must not.
func hungMount(t *testing.T) string {
	t.Helper()
	needRoot(t)
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	dir := t.TempDir()
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())
	if err := unix.Mount("outrider-test", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		fuse.Close()
		t.Skipf("FUSE can't be mounted here: %v", err)
	}
	t.Cleanup(func() {
		fuse.Close() // ends all that still waits
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("failed to unmount: %v", err)
		}
	})
	return dir
}

func TestLaunch_HungFileSystemDelaysOneStart(t *testing.T) {
	nothingLeft(t)
	dir := hungMount(t)
	for name, c := range map[string]struct {
		spec  Spec
		want  string
		stage Stage
	}{
		"program": {
			Spec{Command: task.Command{Path: dir + "/prog", Dir: "/"}},
			"command " + quote(dir+"/prog") + " does not answer: its file system hangs", StageExec,
		},
		"program to look for in the task's directory": {
			Spec{Command: task.Command{Path: "prog", Dir: "/", Lookup: []string{dir}}},
			`command "prog" does not answer: its file system hangs`, StageProgram,
		},
		"program to look for in PATH": {
			Spec{Command: task.Command{Path: "prog", Dir: "/", Env: []string{"PATH=/nowhere:" + dir}}},
			`command "prog" does not answer: its file system hangs`, StageProgram,
		},
		"working directory": {
			Spec{Command: task.Command{Path: "/bin/true", Dir: dir + "/dir"}},
			"work_dir " + quote(dir+"/dir") + " does not answer: its file system hangs", StageWorkDir,
		},
		"network namespace": {
			Spec{Command: task.Command{Path: "/bin/true", Dir: "/", NetworkNamespace: dir + "/ns"}},
			"network namespace " + quote(dir+"/ns") + " does not answer", StageNetwork,
		},
		"device": {
			Spec{Command: task.Command{Path: "/bin/true", Dir: "/", Devices: []task.Device{{HostPath: dir + "/tty",
				TaskPath: "/dev/tty"}}}},
			`devices of command "/bin/true" do not answer: a file system hangs`, StageDevices,
		},
	} {
		t.Run(name, func(t *testing.T) {
			nothingLeft(t)
			p, r, err := start(&c.spec, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			ctx, giveUp := context.WithCancel(context.Background())
			defer giveUp()
			result := make(chan error, 1)
			go func() { result <- p.Started(ctx) }()
			waitForStage(t, p.PID, c.stage)

			runtime.GC() // would never return if the fork were still under way
			for range 20 {
				if e, err := run(shell("exit 4"), nil); err != nil || e.status.ExitStatus() != 4 {
					t.Errorf("another start: code %d, %v", e.status.ExitStatus(), err)
				}
			}
			select {
			case err := <-result:
				t.Fatalf("it did not hang: %v", err)
			default:
			}
			giveUp()
			err = <-result
			var e *Error
			if !errors.As(err, &e) || e.Message != c.want || e.Stage != c.stage || e.Errno != unix.ECANCELED {
				t.Errorf("got %+v, want %s: %s", err, c.stage, c.want)
			}
			if err := unix.Kill(p.PID, 0); err != unix.ESRCH {
				t.Errorf("its process is still there: %v", err)
			}
		})
	}
}

func TestLaunch_KillsAStartThatTakesTooLong(t *testing.T) {
	nothingLeft(t)
	p, r, err := start(&Spec{Command: task.Command{Path: hungMount(t) + "/prog", Dir: "/"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := p.Started(ctx); !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("got %v, want a timeout", err)
	}
	if err := unix.Kill(p.PID, 0); err != unix.ESRCH {
		t.Errorf("its process is still there: %v", err)
	}
}

// waitForStage returns when the launcher has been waiting in a step for a while. One
// that only gets no processor is running, proc_pid_stat(5).
func waitForStage(t *testing.T, pid int, s Stage) {
	t.Helper()
	said, waits := "", 0
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		said = string(b)
		if name := "(" + processName(s) + ") "; strings.Contains(said, name+"S ") || strings.Contains(said, name+"D ") {
			waits++
		} else {
			waits = 0
		}
		if waits == 10 {
			return
		}
	}
	t.Fatalf("the launcher does not wait in step %q: %s", s, said)
}

func TestLaunch_KillDuringExecveIsNoStart(t *testing.T) {
	nothingLeft(t)
	dir := hungMount(t)
	for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		p, r, err := start(&Spec{Command: task.Command{Path: dir + "/prog", Dir: "/"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() { result <- p.Started(context.Background()) }()
		waitForStage(t, p.PID, StageExec)
		if err := unix.Kill(p.PID, sig); err != nil {
			t.Fatal(err)
		}
		if sig != unix.SIGKILL { // caught by the launcher's runtime, which can't act in execve
			waitForStage(t, p.PID, StageExec)
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
		want := "was killed (SIGKILL) before it ran"
		if err := <-result; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", sig, err, want)
		}
		r.Close()
	}
}

func TestLaunch_JoinsCgroupV1(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	dir := fmt.Sprintf("/sys/fs/cgroup/pids/outrider-test-launch-%d", os.Getpid())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no cgroup v1 pids controller: %v", err)
	}
	defer removeCgroup(t, dir)
	if err := os.WriteFile(dir+"/pids.max", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		spec := &Spec{Command: task.Command{Path: "/bin/cat", Args: []string{"/proc/self/cgroup"}, Dir: "/"},
			TasksFiles: []string{dir + "/tasks"}}
		e := mustRun(t, spec)
		if !strings.Contains(e.out, "pids:/") || !strings.Contains(e.out, "/"+filepath.Base(dir)+"\n") {
			t.Fatalf("it is in\n%s", e.out)
		}
	}
}

func removeCgroup(t *testing.T, dir string) {
	t.Helper()
	var err error
	// the kernel takes a moment to forget a process
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = unix.Rmdir(dir); err == nil {
			return
		}
	}
	t.Errorf("failed to remove cgroup: %v", err)
}

// cgroup2 makes a group of the unified hierarchy.
func cgroup2(t *testing.T) *os.File {
	t.Helper()
	needRoot(t)
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
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(e.out, "0::") || !strings.Contains(e.out, "/"+filepath.Base(group.Name())+"\n") {
		t.Errorf("it is in\n%s", e.out)
	}
}

func TestLaunch_RefusesAFrozenCgroup(t *testing.T) {
	nothingLeft(t)
	group := cgroup2(t)
	freeze := group.Name() + "/cgroup.freeze"
	if err := os.WriteFile(freeze, []byte("1"), 0); err != nil {
		t.Skipf("cgroups can't be frozen here: %v", err)
	}
	_, err := run(shell("exit 0"), group)
	if want := "cgroup " + group.Name() + " is frozen"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := os.WriteFile(freeze, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := run(shell("exit 0"), group); err != nil {
		t.Errorf("after the thaw: %v", err)
	}
}

func TestLauncher_ExplainsItselfByHand(t *testing.T) {
	cmd := exec.Command(self, "launch")
	out, err := cmd.CombinedOutput()
	if err == nil || string(out) != "this role is for the supervisor, which starts it by itself\n" {
		t.Errorf("got %q, %v", out, err)
	}
}
