// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// attackVar makes this binary a program that tries something, and says what came of it. Its value is the name of the
// attempt with what it is directed at.
const attackVar = "OUTRIDER_SANDBOX_TEST"

func TestMain(m *testing.M) {
	name, target, ok := strings.Cut(os.Getenv(attackVar), ": ")
	if !ok {
		os.Exit(m.Run())
	}
	if err := attempts[name].try(target); err != nil {
		fmt.Print("refused: ", err)
		return
	}
	fmt.Print("done")
}

// attempts are what a program tries that is to leave its sandbox, in which it has the user of what it attacks.
var attempts = map[string]struct {
	target func(v *victim) string
	try    func(target string) error
	only   string // of which outside of the sandbox too not every machine lets it succeed
}{
	"write to another build": {
		target: func(v *victim) string { return v.dir + "/file" },
		try:    func(file string) error { return os.WriteFile(file, nil, 0o644) },
	},
	"write by another name of a directory": {
		target: func(v *victim) string { return fmt.Sprintf("/proc/%d/root%s/file", v.pid, v.dir) },
		try:    func(file string) error { return os.WriteFile(file, nil, 0o644) },
	},
	"remove another build's file": {
		target: func(v *victim) string { return v.dir + "/kept" },
		try:    os.Remove,
	},
	"write to /tmp": {
		target: func(v *victim) string { return fmt.Sprintf("%s/outrider-sandbox-test-%d", os.TempDir(), v.pid) },
		try: func(file string) error {
			defer os.Remove(file)
			return os.WriteFile(file, nil, 0o644)
		},
	},
	"read another process's environment": {
		target: func(v *victim) string { return fmt.Sprintf("/proc/%d/environ", v.pid) },
		try:    func(file string) error { _, err := os.ReadFile(file); return err },
	},
	"change another process's settings": {
		target: func(v *victim) string { return fmt.Sprintf("/proc/%d/oom_score_adj", v.pid) },
		try:    func(file string) error { return os.WriteFile(file, []byte("900"), 0) },
	},
	"change the first process's settings": {
		target: func(*victim) string { return "/proc/1/oom_score_adj" },
		try:    func(file string) error { return os.WriteFile(file, []byte("900"), 0) },
		only:   "root",
	},
	"signal another process": {
		target: func(v *victim) string { return strconv.Itoa(v.pid) },
		try:    func(pid string) error { n, _ := strconv.Atoi(pid); return unix.Kill(n, unix.SIGCONT) },
	},
	"trace another process": {
		target: func(v *victim) string { return strconv.Itoa(v.pid) },
		try:    func(pid string) error { n, _ := strconv.Atoi(pid); return unix.PtraceSeize(n) },
		only:   "kernel.yama.ptrace_scope = 0",
	},
	"connect to the node": {
		target: func(v *victim) string { return v.address },
		try:    func(address string) error { _, err := net.Dial("tcp", address); return err },
	},
	"connect to an abstract socket": {
		target: func(v *victim) string { return v.abstract },
		try:    func(name string) error { _, err := net.Dial("unix", name); return err },
	},
	"make a directory writable in a user namespace of its own": {
		target: func(v *victim) string { return v.dir },
		try:    remount,
		only:   "user namespaces",
	},
	"gain root by a program that is set-user-ID": {
		target: func(v *victim) string { return v.setuid },
		try: func(program string) error {
			if out, err := exec.Command(program, "-u").Output(); err != nil || string(out) != "0\n" {
				return fmt.Errorf("it is user %q: %w", out, err)
			}
			return nil
		},
	},
}

// remount has a child with all capabilities in a user and a mount namespace of its own write to a directory.
func remount(dir string) error {
	cmd := exec.Command(
		"/bin/sh",
		"-c",
		`mount -o remount,bind,rw "$1" || mount -o remount,rw / || mount -t tmpfs tmpfs /mnt; echo > "$1/file"`,
		"sh",
		dir,
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// victim is what is attacked: a process of the same user, and what is on the node.
type victim struct {
	pid                            int
	dir, address, abstract, setuid string
}

func newVictim(t *testing.T, as *syscall.Credential, top string) *victim {
	t.Helper()
	v := &victim{dir: filepath.Join(top, "other"), setuid: filepath.Join(top, "id")}
	must.NoError(t, os.Mkdir(v.dir, 0o700))
	must.NoError(t, os.WriteFile(v.dir+"/kept", nil, 0o600))
	must.NoError(t, os.Chown(v.dir, int(as.Uid), int(as.Gid)))
	id, err := exec.LookPath("id")
	must.NoError(t, err)
	content, err := os.ReadFile(id)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(v.setuid, content, 0o755))
	must.NoError(t, unix.Chmod(v.setuid, 0o4755))
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { tcp.Close() })
	v.address = tcp.Addr().String()
	v.abstract = fmt.Sprintf("@outrider-sandbox-test-%d-%s", os.Getpid(), filepath.Base(top))
	unixSocket, err := net.Listen("unix", v.abstract)
	must.NoError(t, err)
	t.Cleanup(func() { unixSocket.Close() })
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: as,
	} // no Pdeathsig: a sandbox may get, and end, the thread that it would be of
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	v.pid = cmd.Process.Pid
	return v
}

func TestSandbox_HoldsEachAttempt(t *testing.T) {
	testsupport.NeedRoot(t)                       // without it a sandbox has no namespaces
	top, err := os.MkdirTemp("", "sandbox-test-") // t.TempDir is not open to other users
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must.NoError(t, os.Chmod(top, 0o755))
	binary := filepath.Join(top, "attack")
	self, err := os.ReadFile("/proc/self/exe")
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(binary, self, 0o755))
	as := &syscall.Credential{
		Uid: uint32(1_800_000_000 + os.Getpid()),
		Gid: uint32(1_800_000_000 + os.Getpid()),
	} // this run's alone
	for name, a := range attempts {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp(top, "")
			must.NoError(t, err)
			must.NoError(t, os.Chmod(dir, 0o755))
			v := newVictim(t, as, dir)
			own := filepath.Join(dir, "own")
			must.NoError(t, os.Mkdir(own, 0o700))
			must.NoError(t, os.Chown(own, int(as.Uid), int(as.Gid)))
			env := []string{attackVar + "=" + name + ": " + a.target(v), "PATH=/usr/bin:/bin:/usr/sbin:/sbin"}

			var said bytes.Buffer
			s := New(as, own)
			err = s.Run(t.Context(), Program{Args: []string{binary}, Env: env, Dir: "/", Stdout: &said, Stderr: &said})
			s.Close()
			must.NoError(t, err, must.Sprint("in the sandbox"))
			test.StrHasPrefix(t, "refused: ", said.String(), test.Sprint("in the sandbox"))
			if left, err := os.ReadDir(v.dir); err != nil || len(left) != 1 {
				t.Errorf("the other build's directory has %v, %v", left, err)
			}
			test.NoError(t, unix.Kill(v.pid, 0), test.Sprint("the other process"))

			control := exec.Command(binary) // which shows that the sandbox is what refuses it
			control.Env, control.Dir = env, "/"
			control.SysProcAttr = &syscall.SysProcAttr{Credential: as}
			out, err := control.Output()
			if string(out) != "done" {
				if a.only == "" {
					t.Errorf("outside of the sandbox: %s, %v", out, err)
				} else {
					t.Logf("outside of the sandbox it needs %s: %s, %v", a.only, out, err)
				}
			}
		})
	}
}

func TestSandbox_LetsAProgramWriteWhereItMay(t *testing.T) {
	dir := t.TempDir()
	s := New(nil, dir)
	defer s.Close()
	var said bytes.Buffer
	err := s.Run(
		t.Context(),
		Program{
			Args:   []string{"/bin/sh", "-c", "echo a > file && cat file && echo b > /dev/null"},
			Dir:    dir,
			Stdout: &said,
			Stderr: &said,
		},
	)
	must.NoError(t, err, must.Sprint("it said"))
	test.Eq(t, "a\n", said.String(), test.Sprint("it said"))
	test.ErrorIs(t, s.Run(t.Context(), Program{Args: []string{"/nonexistent"}, Dir: "/"}), os.ErrNotExist,
		test.Sprint("a program that is not there"))
}
