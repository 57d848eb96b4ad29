// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestError_IsOneSentence(t *testing.T) {
	testsupport.NeedRoot(t)
	nothingLeft(t)
	// not t.TempDir, which other users can't access
	dir, err := os.MkdirTemp("", "outrider-launch-")
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := func(name, content string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		must.NoError(t, os.Chmod(path, mode))
		return path
	}
	must.NoError(t, os.Chmod(dir, 0o755))
	plain := file("plain", "text\n", 0o755)
	noX := file("no-x", "#!/bin/sh\n", 0o644)
	rootOnly := file("root-only", "#!/bin/sh\n", 0o700)
	hidden := file("private/prog", "#!/bin/sh\n", 0o755)
	must.NoError(t, os.Chmod(filepath.Dir(hidden), 0o700))
	noInterp := file("no-interp", "#! /bin/nope -x\n", 0o755)
	windows := file("windows", "#!/bin/sh\r\nexit 0\r\n", 0o755)
	badInterp := file("bad-interp", "#!"+noX+"\n", 0o755)
	empty := file("empty", "", 0o755)
	elf := "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00\xf3\x10" + strings.Repeat("\x00", 60)
	foreign := file("foreign", elf, 0o755)
	must.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	busy := file("busy", "", 0o755)
	writer, err := os.OpenFile(busy, os.O_WRONLY, 0)
	must.NoError(t, err)
	defer writer.Close()
	noLoader := file("no-loader", withLoader(t, "/lib/no-such-loader.so"), 0o755)

	nobody := &task.User{UID: 65534, GID: 65534}
	q := quote
	cmd := func(path string, change ...func(*Spec)) *Spec {
		s := &Spec{Command: task.Command{Path: path, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}}
		for _, f := range change {
			f(s)
		}
		return s
	}
	user := func(s *Spec) { s.Command.User = nobody }
	lookup := func(s *Spec) { s.Command.Lookup = []string{dir} }
	in := func(d string) func(*Spec) { return func(s *Spec) { s.Command.Dir = d } }
	limit := func(l task.Rlimit) func(*Spec) {
		return func(s *Spec) { s.Command.Rlimits = []task.Rlimit{l} }
	}
	var nofile unix.Rlimit
	must.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile))
	for name, c := range map[string]struct {
		spec  *Spec
		want  string
		stage Stage
		errno syscall.Errno
	}{
		"no command":          {cmd(""), `command is empty`, StageSetup, unix.EINVAL},
		"bare name not found": {cmd("no-such"), `command "no-such" not found in PATH`, StageProgram, unix.ENOENT},
		"bare name not found by a task": {cmd("no-such", lookup),
			`command "no-such" not found in the task directory or in PATH`, StageProgram, unix.ENOENT},
		"relative path not found": {cmd("bin/x", lookup, in("/tmp")),
			`command "bin/x" not found in the task directory or in "/tmp"`, StageProgram, unix.ENOENT},
		"absolute path not found": {cmd("/no/such"), `command "/no/such" not found`, StageExec, unix.ENOENT},
		"path through a file": {cmd(plain + "/x"), `command ` + q(plain+"/x") + ` not found`, StageExec,
			unix.ENOTDIR},
		"not executable": {cmd(noX), `command ` + q(noX) + ` is not executable`, StageExec, unix.EACCES},
		"not executable by the user": {cmd(rootOnly, user), `command ` + q(rootOnly) +
			` is not executable by user 65534`, StageExec, unix.EACCES},
		"not reachable by the user": {cmd(hidden, user), `command ` + q(hidden) +
			` cannot be accessed by user 65534: permission denied in a directory above it`, StageExec, unix.EACCES},
		"a directory":             {cmd(dir), q(dir) + ` is a directory`, StageExec, unix.EACCES},
		"a directory of the task": {cmd("sub", lookup), q(dir+"/sub") + ` is a directory`, StageProgram, unix.EISDIR},
		"a device":                {cmd("/dev/null"), `"/dev/null" is not a regular file`, StageExec, unix.EACCES},
		"interpreter missing": {cmd(noInterp), `interpreter "/bin/nope" of ` + q(noInterp) + ` not found`,
			StageExec, unix.ENOENT},
		"loader missing": {cmd(noLoader), `interpreter "/lib/no-such-loader.so" of ` + q(noLoader) +
			` not found`, StageExec, unix.ENOENT},
		"windows line endings": {cmd(windows), `interpreter "/bin/sh\r" of ` + q(windows) +
			` not found: the script has Windows line endings`, StageExec, unix.ENOENT},
		"interpreter not executable": {cmd(badInterp), `interpreter ` + q(noX) + ` of ` + q(badInterp) +
			` is not executable`, StageExec, unix.EACCES},
		"no program": {cmd(plain), q(plain) + ` is not a program: no #! line and no ELF header`,
			StageExec, unix.ENOEXEC},
		"empty file": {cmd(empty), q(empty) + ` is not a program: no #! line and no ELF header`,
			StageExec, unix.ENOEXEC},
		"other machine": {cmd(foreign), q(foreign) + ` is a program for another machine architecture`,
			StageExec, unix.ENOEXEC},
		"being written": {cmd(busy), q(busy) +
			` is open for writing: it cannot be executed until it is closed`, StageExec, unix.ETXTBSY},
		"argument too long": {cmd("/bin/true", func(s *Spec) {
			s.Command.Args = []string{strings.Repeat("x", 200_000)}
		}), `arguments and environment are too long for the kernel: the limits are 128 KiB for each and a quarter of ` +
			`the stack limit (ulimit stack) for all`, StageExec, unix.E2BIG},
		"NUL in an argument": {cmd("/bin/true", func(s *Spec) { s.Command.Args = []string{"\x00"} }),
			`command contains a NUL byte`, StageSetup, 0},
		"work_dir missing": {cmd("/bin/true", in("/no/such")), `work_dir "/no/such" does not exist`,
			StageWorkDir, unix.ENOENT},
		"work_dir not a directory": {cmd("/bin/true", in("/etc/passwd")),
			`work_dir "/etc/passwd" is not a directory`, StageWorkDir, unix.ENOTDIR},
		"work_dir relative": {cmd("/bin/true", in("tmp")), `work_dir "tmp" is not an absolute path`,
			StageWorkDir, unix.EINVAL},
		"work_dir closed to the user": {cmd("/bin/true", user, in(filepath.Dir(hidden))), `work_dir ` +
			q(filepath.Dir(hidden)) + ` cannot be entered by user 65534: permission denied`, StageWorkDir, unix.EACCES},
		"nice out of range": {cmd("/bin/true", func(s *Spec) { s.Command.Nice = 20 }),
			`nice 20 is not between -20 and 19`, StageLimits, unix.EINVAL},
		"oom_score_adj out of range": {cmd("/bin/true", func(s *Spec) { s.Command.OOMScoreAdj = 1001 }),
			`oom_score_adj 1001 is not between -1000 and 1000`, StageLimits, unix.EINVAL},
		"soft limit above the hard one": {cmd("/bin/true", limit(task.Rlimit{Resource: unix.RLIMIT_NOFILE, Soft: 20,
			Hard: 10})), `ulimit nofile: the soft limit 20 is above the hard limit 10`, StageLimits, unix.EINVAL},
		"no such limit": {cmd("/bin/true", limit(task.Rlimit{Resource: 99})),
			`failed to read ulimit 99: invalid argument`, StageLimits, unix.EINVAL},
		"network namespace missing": {cmd("/bin/true", func(s *Spec) { s.Command.NetworkNamespace = "/no/ns" }),
			`failed to open network namespace "/no/ns": no such file or directory`, StageNetwork, unix.ENOENT},
		"network namespace of another kind": {cmd("/bin/true",
			func(s *Spec) { s.Command.NetworkNamespace = "/etc/passwd" }), `"/etc/passwd" is not a network ` +
			`namespace`, StageNetwork, unix.EINVAL},
		"cgroup missing": {cmd("/bin/true", func(s *Spec) { s.TasksFiles = []string{"/no/tasks"} }),
			`failed to join cgroup /no/tasks: no such file or directory`, StageCgroup, unix.ENOENT},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(c.spec, nil)
			var e *Error
			must.True(t, errors.As(err, &e), must.Sprintf("got %v, want an *Error", err))
			must.Eq(t, c.want, e.Message)
			must.Eq(t, c.stage, e.Stage)
			test.Eq(t, c.errno, e.Errno)
		})
	}
}

// withLoader returns the content of /bin/true, with path as its dynamic loader.
func withLoader(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile("/bin/true")
	must.NoError(t, err)
	old := interpreter("/bin/true")
	must.NotEq(t, "", old, must.Sprintf("/bin/true has the loader %q, which can't be replaced by %q", old, path))
	must.False(t, len(path) > len(old),
		must.Sprintf("/bin/true has the loader %q, which can't be replaced by %q", old, path))
	return strings.Replace(string(b), old+"\x00", path+strings.Repeat("\x00", len(old)-len(path)+1), 1)
}

func TestError_NamesMissingRights(t *testing.T) {
	testsupport.NeedRoot(t)
	// as returns the output of a supervisor that runs as user 65534, without any capability
	as := func(t *testing.T, s *Spec) string {
		t.Helper()
		cmd := exec.Command(self, "supervise")
		cmd.Stdin = specJSON(t, s)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{7,
			9}}}
		out, _ := cmd.CombinedOutput()
		return strings.TrimSpace(string(out))
	}
	hard := "20"
	const otherGroups = "error: the agent must run as root to run a task of user 65534 with other groups than the agent's"
	own := func(groups ...uint32) func(c *task.Command) {
		return func(c *task.Command) { c.User = &task.User{UID: 65534, GID: 65534, Groups: groups} }
	}
	for name, c := range map[string]struct {
		change func(*task.Command)
		want   string
	}{
		"its own user":        {own(9, 7), "65534"},
		"its own group twice": {own(7, 65534, 9), "65534"},
		"an additional group": {own(7, 9, 8), otherGroups},
		"a missing group":     {own(7), otherGroups},
		"no groups":           {own(), otherGroups},
		"a foreign group": {func(c *task.Command) { c.User = &task.User{UID: 65534, GID: 8, Groups: []uint32{7, 9}} },
			"error: the agent must run as root to run a task with group 8"},
		"one of its groups": {func(c *task.Command) { c.User = &task.User{UID: 65534, GID: 7, Groups: []uint32{7, 9}} },
			"error: the agent must run as root to run a task with group 7"},
		"another user": {func(c *task.Command) { c.User = &task.User{UID: 1000, GID: 1000} },
			"error: the agent must run as root to run a task as user 1000"},
		"root": {func(c *task.Command) { c.User = &task.User{} },
			"error: the agent must run as root to run a task as user 0"},
		"a higher nice": {func(c *task.Command) { c.Nice = 3 }, "65534"},
		"a negative nice": {func(c *task.Command) { c.Nice = -3 },
			"error: nice -3 is lower than the agent may set: it needs CAP_SYS_NICE"},
		"a higher adjustment": {func(c *task.Command) { c.OOMScoreAdj = 7 }, "65534"},
		"a negative adjustment": {func(c *task.Command) { c.OOMScoreAdj = -7 },
			"error: oom_score_adj -7 is lower than the agent may set: it needs CAP_SYS_RESOURCE"},
		"a network namespace": {func(c *task.Command) { c.NetworkNamespace = "/proc/self/ns/net" },
			`error: network namespace "/proc/self/ns/net" cannot be entered: the agent must run as root for it`},
	} {
		t.Run(name, func(t *testing.T) {
			spec := shell("id -u")
			c.change(&spec.Command)
			test.Eq(t, c.want, as(t, spec))
		})
	}
	t.Run("a hard limit above the agent's limit", func(t *testing.T) {
		s := shell("ulimit -n")
		s.Command.Rlimits = []task.Rlimit{{Resource: unix.RLIMIT_NOFILE, Soft: 30, Hard: 30}}
		cmd := exec.Command("sh", "-c", "ulimit -n "+hard+"; exec "+self+" supervise")
		cmd.Stdin = specJSON(t, s)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput()
		want := "error: ulimit nofile: the hard limit 30 is above the agent's 20, and the agent can't raise it\n"
		test.Eq(t, want, string(out), test.Sprintf("got  %s\nwant", out))
	})
}

func TestError_NamesANoexecFileSystem(t *testing.T) {
	testsupport.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "size=64k"); err != nil {
		t.Skipf("no tmpfs can be mounted here: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	path := filepath.Join(dir, "prog")
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	_, err := run(&Spec{Command: task.Command{Path: path, Dir: "/"}}, nil)
	test.EqError(t, err, "command "+quote(path)+" is on a file system that is mounted noexec")
}
