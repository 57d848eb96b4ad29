// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
	"github.com/outrider-dev/outrider/plugins/remote/upload"
)

// The launcher changes the thread it runs on: the main one, whose id is the process's.
func init() { runtime.LockOSThread() }

// shimVar makes the test binary a shim, and idleVar is for how long its supervisor stays without a task.
const (
	shimVar = "OUTRIDER_TEST_SHIM"
	idleVar = "OUTRIDER_TEST_SHIM_IDLE"
)

// TestMain is also the shim, the supervisor and the launcher.
func TestMain(m *testing.M) {
	upload.Main()
	simulate.Main()
	if dir := os.Getenv(shimVar); dir != "" {
		os.Exit(shim.Main([]string{"serve", "-idle", os.Getenv(idleVar), "-state-dir", dir}))
	}
	os.Exit(m.Run())
}

const (
	testLease = 3 * time.Second
	nobody    = 65534
)

// machine is a host: a state directory, and the shims that tests start there, as a user.
type machine struct {
	t    testing.TB
	dir  string
	user int

	program string                  // of shims, this one if empty
	idle    string                  // of shims, 500ms if empty
	pass    func(net.Conn) net.Conn // what connections go through, nil for nothing

	mu    sync.Mutex
	shims map[endpoint.Endpoint][]*exec.Cmd
}

// newMachine makes one. At the end of the test nothing of it may be left.
func newMachine(t testing.TB, user int) *machine {
	t.Helper()
	top, err := os.MkdirTemp("", "ors")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(top, 0o755))
	m := &machine{t: t, dir: filepath.Join(top, "state"), user: user, shims: map[endpoint.Endpoint][]*exec.Cmd{}}
	m.makeDir(m.dir)
	t.Cleanup(func() {
		for _, all := range m.shims { // their connections are closed
			for _, c := range all {
				late := time.AfterFunc(10*time.Second, func() {
					t.Error("a shim does not end with its connection")
					_ = c.Process.Kill()
				})
				_ = c.Wait()
				late.Stop()
			}
		}
		testsupport.Within(t, 30*time.Second, m.remains)
		must.NoError(t, os.RemoveAll(top))
	})
	return m
}

func (m *machine) makeDir(dir string) {
	must.NoError(m.t, os.Mkdir(dir, 0o711))
	if m.user != os.Geteuid() {
		testsupport.NeedRoot(m.t)
		must.NoError(m.t, os.Chown(dir, m.user, m.user))
	}
}

// remains is an error that names what is left of processes, files and cgroups.
func (m *machine) remains() error {
	var left []string
	for _, pid := range m.processes("") {
		b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		left = append(left, strings.ReplaceAll(string(b), "\x00", " "))
	}
	entries, _ := os.ReadDir(m.dir)
	for _, e := range entries {
		if e.Name() != "host" { // whose the directory is stays
			left = append(left, e.Name())
		}
	}
	for _, root := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} { // of v2, and of v1
		groups, _ := filepath.Glob(root + shim.CgroupParent(m.dir))
		left = append(left, groups...)
	}
	if len(left) > 0 {
		return fmt.Errorf("left: %s", strings.Join(left, ", "))
	}
	return nil
}

// processes are those with the state directory among their arguments, which begin so.
func (m *machine) processes(begin string) []int {
	return testsupport.Processes(func(args []string) bool {
		all := strings.Join(args, " ")
		return strings.HasPrefix(all, begin) && strings.Contains(all, m.dir)
	})
}

// connect returns a host that starts its shims here.
func (m *machine) connect(testing.TB) endpoint.Endpoint { return m.host() }

func (m *machine) host() *sshhost.Host {
	var h *sshhost.Host
	h = sshhost.New(sshhost.Config{
		Dial:  func(context.Context) (net.Conn, error) { return m.dial(h) },
		Lease: testLease, Address: "192.0.2.1",
	})
	m.t.Cleanup(func() { _ = h.Close() })
	return h
}

// dial starts a shim.
func (m *machine) dial(h endpoint.Endpoint) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	cmd := exec.Command(cmp.Or(m.program, "/proc/self/exe"))
	cmd.Args = []string{"outrider-shim", m.dir}
	cmd.Env = append(os.Environ(), shimVar+"="+m.dir, idleVar+"="+cmp.Or(m.idle, "500ms"))
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, os.Stderr
	if m.user != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(m.user), Gid: uint32(m.user)}}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shims[h] = append(m.shims[h], cmd)
	conn, err := net.FileConn(ours)
	if err == nil && m.pass != nil {
		conn = m.pass(conn)
	}
	return conn, err
}

// cut kills the shims of a host.
func (m *machine) cut(t testing.TB, h endpoint.Endpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	must.SliceNotEmpty(t, m.shims[h])
	for _, c := range m.shims[h] {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

// kill kills a process, and waits until it is gone or a zombie.
func kill(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		must.NoError(t, unix.Kill(pid, unix.SIGKILL))
		testsupport.Eventually(t, "the process is dead", func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			return err != nil || len(b) == 0
		})
	}
}

// gone waits until a process was reaped: until then its exit is known.
func gone(t testing.TB, pid int) {
	t.Helper()
	testsupport.Eventually(t, "the process is reaped", func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
}

// killAll kills shims and supervisor, so that nobody is there to see an end.
func (m *machine) killAll(t testing.TB) {
	t.Helper()
	kill(t, m.processes("outrider-shim")...)
	kill(t, m.processes("outrider-supervisor")...)
}

// shell is a spec that runs a script.
func shell(script string) *endpoint.Spec {
	return &endpoint.Spec{
		Task: "web", Env: map[string]string{"TASK_DIR": endpoint.DirTask},
		Process: &endpoint.Process{Command: "/bin/sh", Args: []string{"-c", script}},
	}
}
