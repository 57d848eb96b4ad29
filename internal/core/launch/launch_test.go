// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// report is a script that prints the kernel's view of the program. The shell reads its status file without a fork,
// during which it would block signals.
const report = `
p=/proc/$$
while read -r line; do echo "$line"; done < $p/status
cat $p/limits
echo "oom_score_adj: $(cat $p/oom_score_adj)"
echo "cwd: $(readlink $p/cwd)"
printf "fds: "; ls -m $p/fd
echo "net: $(readlink $p/ns/net)"
echo "pid: $$"
read -r stat < $p/stat
set -- ${stat##*)}
echo "session: $4"
echo "nice: ${17}"
`

func TestProgram_GetsTheCommandsSettings(t *testing.T) {
	testsupport.NeedRoot(t)
	nothingLeft(t)
	dir := t.TempDir()
	must.NoError(t, os.Chmod(dir, 0o755))
	spec := shell(report)
	c := &spec.Command
	c.Dir = "/usr"
	c.User = &task.User{UID: 65534, GID: 65533, Groups: []uint32{7, 9}}
	c.Umask = ptr(uint32(0o027))
	c.Nice = 5
	c.OOMScoreAdj = 321
	c.Rlimits = []task.Rlimit{
		{Resource: unix.RLIMIT_NOFILE, Soft: 100, Hard: 200},
		{Resource: unix.RLIMIT_CORE, Soft: 0, Hard: 0},
		{Resource: unix.RLIMIT_CPU, Soft: 50, Hard: task.Unlimited},
		{Resource: unix.RLIMIT_NPROC, Soft: 2000, Hard: 2000},
	}
	e := mustRun(t, spec)
	for name, want := range map[string]string{
		"Name":               "sh",
		"Umask":              "0027",
		"Uid":                "65534 65534 65534 65534",
		"Gid":                "65533 65533 65533 65533",
		"Groups":             "7 9",
		"CapEff":             "0000000000000000",
		"CapPrm":             "0000000000000000",
		"SigBlk":             "0000000000000000",
		"SigIgn":             "0000000000000000",
		"Threads":            "1",
		"Max open files":     "100 200 files",
		"Max core file size": "0 0 bytes",
		"Max cpu time":       "50 unlimited seconds",
		"Max processes":      "2000 2000 processes",
		"oom_score_adj":      "321",
		"cwd":                "/usr",
		"fds":                "0, 1, 2",
		"nice":               "5",
		"pid":                strconv.Itoa(e.pid),
		"session":            strconv.Itoa(e.pid),
	} {
		test.Eq(t, want, field(t, e.out, name), test.Sprint(name))
	}
}

func TestProgram_InheritsNothingFromTheSupervisor(t *testing.T) {
	nothingLeft(t)
	// attributes that a supervisor may have and a program must not
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP, unix.SIGUSR1)
	defer signal.Reset(unix.SIGPIPE, unix.SIGHUP, unix.SIGUSR1)
	defer unix.Umask(unix.Umask(0o077))
	var fds []int
	for range 3 {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // without O_CLOEXEC
		must.NoError(t, err)
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	must.NoError(t, unix.Dup3(fds[0], 251, 0))
	defer unix.Close(251)

	e := mustRun(t, shell(report))
	for name, want := range map[string]string{
		"Umask":  "0022",
		"SigBlk": "0000000000000000",
		"SigIgn": "0000000000000000",
		"cwd":    "/",
		"fds":    "0, 1, 2",
		"nice":   "0",
	} {
		test.Eq(t, want, field(t, e.out, name), test.Sprint(name))
	}
}

func TestProgram_InheritsNeitherSignalSettingsNorFileLimit(t *testing.T) {
	if out, err := exec.Command("env", "--block-signal=USR1", "true").CombinedOutput(); err != nil {
		t.Skipf("env(1) has no --block-signal: %s", out)
	}
	cmd := exec.Command("sh", "-c", "ulimit -Sn 1000; exec env --block-signal=USR1 --ignore-signal=USR2,PIPE,TSTP,CHLD "+
		""+self+" supervise")
	cmd.Stdin = specJSON(t, shell(report))
	out, err := cmd.Output()
	must.NoError(t, err, must.Sprintf("%v: %s", err, out))
	text := string(out)
	hard := strings.Fields(field(t, text, "Max open files"))[1]
	for name, want := range map[string]string{
		"SigBlk": "0000000000000000",
		"SigIgn": "0000000000000000",
		// the limit of sh, although Go raises the soft limit in the supervisor and in the launcher
		"Max open files": "1000 " + hard + " files",
	} {
		test.Eq(t, want, field(t, text, name), test.Sprint(name))
	}
}

func TestProgram_InheritsNoCapabilities(t *testing.T) {
	testsupport.NeedRoot(t)
	for name, user := range map[string][]string{
		"of root":                  nil,
		"of an agent without root": {"--reuid=65534", "--regid=65534", "--clear-groups", "--ambient-caps=+dac_read_search"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--inh-caps=+dac_read_search"}, user...)
			cmd := exec.Command("setpriv", append(args, self, "supervise")...)
			cmd.Stdin = specJSON(t, shell(report+"; cat /etc/shadow"))
			out, err := cmd.Output()
			text := string(out)
			test.Eq(t, "0000000000000000", field(t, text, "CapInh"))
			test.Eq(t, "0000000000000000", field(t, text, "CapAmb"))
			if user != nil {
				test.Eq(t, "0000000000000000", field(t, text, "CapPrm"))
				test.Error(t, err, test.Sprint("it read /etc/shadow"))
			}
		})
	}
}

func TestProgram_HasItsOwnSessionKeyring(t *testing.T) {
	mine, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true)
	if err != nil {
		t.Skipf("no keyrings here: %v", err)
	}
	seen := map[string]bool{fmt.Sprintln(mine, nil): true}
	for range 2 {
		s := shell("")
		s.Command.Path, s.Command.Args = self, []string{"keyring"}
		out := mustRun(t, s).out
		test.False(t, seen[out], test.Sprintf("keyring %s is in use by another: %v", out, seen))
		test.StrHasSuffix(t, " <nil>\n", out)
		seen[out] = true
	}
}

func specJSON(t *testing.T, s *Spec) *strings.Reader {
	t.Helper()
	b, err := json.Marshal(s)
	must.NoError(t, err)
	return strings.NewReader(string(b))
}

func TestProgram_GetsExactEnvironmentAndArguments(t *testing.T) {
	env := []string{"PATH=/usr/bin:/bin", "EMPTY=", "A=1=2", "NL=a\nb", "UTF=ä€", "SPACE= x ", "DUP=1", "DUP=2",
		"noequals", "", "LONG=" + strings.Repeat("x", 100_000)}
	args := []string{"", "a b", "'\"$x", "", "ü\n", strings.Repeat("y", 100_000)}
	cat := &Spec{Command: task.Command{Path: "cat", Args: []string{"/proc/self/environ"}, Env: env, Dir: "/"}}
	if e := mustRun(t, cat); e.out != strings.Join(env, "\x00")+"\x00" {
		t.Errorf("environment is %.300q", e.out)
	}
	cat.Command.Args = append([]string{"--", "/proc/self/cmdline"}, args...)
	e := mustRun(t, cat) // after its command line, cat reports that the files named by args are missing
	want := "cat\x00--\x00/proc/self/cmdline\x00" + strings.Join(args, "\x00") + "\x00"
	test.StrHasPrefix(t, want, e.out, test.Sprintf("arguments are %.300q", e.out))
	none := shell(`tr '\0' '\n' < /proc/$$/environ`)
	none.Command.Env = nil
	none.Command.Path, none.Command.Args[1] = "sh", "/bin/cat /proc/$$/environ"
	e = mustRun(t, none)
	test.Eq(t, "", e.out, test.Sprintf("environment is %q, want none", e.out))
}

func TestProgram_HasBlockingStdioOrDevNull(t *testing.T) {
	nothingLeft(t)
	var pipe [2]int
	must.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	r, w := os.NewFile(uintptr(pipe[0]), "r"), os.NewFile(uintptr(pipe[1]), "w")
	defer r.Close()
	spec := shell(`grep flags /proc/$$/fdinfo/1; readlink /proc/$$/fd/0 /proc/$$/fd/2`)
	p, err := Start(spec, [3]*os.File{1: w}, nil)
	must.NoError(t, err)
	w.Close()
	must.NoError(t, p.Started(t.Context()))
	defer unix.Close(p.TakePidFD())
	if _, err := unix.Wait4(p.PID, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 512)
	n, err := r.Read(b)
	must.NoError(t, err)
	lines := strings.Fields(string(b[:n]))
	flags, err := strconv.ParseInt(lines[1], 8, 64)
	if err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("flags of stdout are %s, %v", lines[1], err)
	}
	test.SliceEqOp(t, []string{"/dev/null", "/dev/null"}, lines[2:], test.Sprint("stdin and stderr are"))
}

func TestProgram_GetsAControllingTerminal(t *testing.T) {
	nothingLeft(t)
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals: %v", err)
	}
	defer ptmx.Close()
	n, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	must.NoError(t, err)
	must.NoError(t, unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must.NoError(t, err)
	spec := shell(`echo "to the terminal" > /dev/tty && exit 9`)
	spec.TTY = true
	p, err := Start(spec, [3]*os.File{tty, tty, tty}, nil)
	tty.Close()
	must.NoError(t, err)
	must.NoError(t, p.Started(t.Context()))
	defer unix.Close(p.TakePidFD())
	const want = "to the terminal\r\n"
	b := make([]byte, len(want))
	if got, err := io.ReadFull(ptmx, b); err != nil || string(b) != want { // the text may arrive in two parts
		t.Errorf("read %q, %v from the terminal", b[:got], err)
	}
	var ws unix.WaitStatus
	_, err = unix.Wait4(p.PID, &ws, 0, nil)
	must.NoError(t, err, must.Sprint("exit code"))
	test.Eq(t, 9, ws.ExitStatus(), test.Sprint("exit code"))

	spec.TTY = true
	_, err = run(spec, nil)
	test.ErrorContains(t, err, "failed to make stdin the controlling terminal",
		test.Sprint("with /dev/null for a terminal"))
}

func TestLauncher_EntersTheNetworkNamespace(t *testing.T) {
	testsupport.NeedRoot(t)
	holder := exec.Command("unshare", "-n", "sh", "-c", "echo ready; exec sleep 60")
	out, err := holder.StdoutPipe()
	must.NoError(t, err)
	if err := holder.Start(); err != nil {
		t.Skipf("no unshare(1): %v", err)
	}
	defer func() { _ = holder.Process.Kill(); _ = holder.Wait() }()
	if n, err := out.Read(make([]byte, 10)); n == 0 {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	ns := fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
	want, err := os.Readlink(ns)
	must.NoError(t, err)
	spec := shell(report)
	spec.Command.NetworkNamespace = ns
	spec.Command.User = &task.User{UID: 65534, GID: 65534}
	test.Eq(t, want, field(t, mustRun(t, spec).out, "net"), test.Sprint("network namespace"))
	host, err := os.Readlink("/proc/self/ns/net")
	must.NoError(t, err)
	got := field(t, mustRun(t, shell(report)).out, "net")
	must.Eq(t, host, got, must.Sprint("without a network namespace in the spec"))
	test.NotEq(t, want, got, test.Sprint("without a network namespace in the spec"))
}

func TestLauncher_MakesFilesOfTheTaskExecutable(t *testing.T) {
	testsupport.NeedRoot(t)
	dir := t.TempDir()
	taskDir := filepath.Join(dir, "task")
	local := filepath.Join(taskDir, "local")
	outside := filepath.Join(dir, "outside")
	for _, d := range []string{local, outside, filepath.Join(local, "sub")} {
		must.NoError(t, os.MkdirAll(d, 0o755))
	}
	for d := dir; d != "/"; d = filepath.Dir(d) { // other users must be able to enter the parents of dir
		if st, err := os.Stat(d); err == nil && st.Mode().Perm()&0o011 != 0o011 && strings.Contains(d, "Test") {
			must.NoError(t, os.Chmod(d, 0o755))
		}
	}
	script := func(path string, mode os.FileMode, uid, gid int) {
		t.Helper()
		must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 5\n"), 0o600))
		must.NoError(t, os.Chown(path, uid, gid))
		must.NoError(t, os.Chmod(path, mode))
	}
	nobody := &task.User{UID: 65534, GID: 65534, Groups: []uint32{777}}
	for name, c := range map[string]struct {
		command string // a path in the task's local/, or absolute
		mode    os.FileMode
		uid     int
		gid     int
		user    *task.User
		before  func(t *testing.T, file string)
		want    os.FileMode // mode of the file after the start
		err     string
	}{
		"a file of root's, for another user":         {mode: 0o600, user: nobody, want: 0o605},
		"a file of the user":                         {mode: 0o600, uid: 65534, user: nobody, want: 0o700},
		"a file of one of the user's groups":         {mode: 0o640, gid: 777, user: nobody, want: 0o650},
		"a file for root":                            {mode: 0o600, want: 0o700},
		"a file that root can run already":           {mode: 0o611, want: 0o611},
		"an executable file is left alone":           {mode: 0o755, user: nobody, want: 0o755},
		"a set-user-ID bit does not survive":         {mode: 0o644 | os.ModeSetuid, user: nobody, want: 0o645},
		"a file in a directory below":                {command: "sub/prog", mode: 0o600, user: nobody, want: 0o605},
		"an absolute path into the task's directory": {command: local + "/prog", mode: 0o600, user: nobody, want: 0o605},
		"a file outside is not touched": {command: outside + "/prog", mode: 0o644, want: 0o644,
			err: "is not executable"},
		"a link that leads out is not followed": {mode: 0o644, want: 0o644, err: "is not executable",
			before: func(t *testing.T, file string) {
				rename(t, file, outside+"/target")
				must.NoError(t, os.Symlink(outside+"/target", file))
			}},
		"a link inside is followed": {mode: 0o644, want: 0o744, before: func(t *testing.T, file string) {
			rename(t, file, local+"/sub/target")
			must.NoError(t, os.Symlink("sub/target", file))
		}},
		"a file with a second name is not touched": {mode: 0o644, want: 0o644, err: "is not executable",
			before: func(t *testing.T, file string) {
				must.NoError(t, os.Link(file, outside+"/second"))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.command == "" {
				c.command = "prog"
			}
			file := c.command
			if !filepath.IsAbs(file) {
				file = filepath.Join(local, file)
			}
			script(file, c.mode, c.uid, c.gid)
			defer os.Remove(file)
			if c.before != nil {
				c.before(t, file)
			}
			e, err := run(&Spec{Command: task.Command{Path: c.command, Dir: "/", User: c.user, Lookup: []string{local,
				taskDir}}}, nil)
			if c.err == "" && (err != nil || e.status.ExitStatus() != 5) {
				t.Errorf("got code %d, %v %s", e.status.ExitStatus(), err, e.out)
			} else if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got error %v, want %q", err, c.err)
			}
			st, err := os.Stat(file)
			must.NoError(t, err)
			test.Eq(t, c.want, st.Mode(), test.Sprint("mode"))
		})
	}
	t.Run("a link in place of the task's own directory is not followed", func(t *testing.T) {
		script(outside+"/prog", 0o644, 0, 0)
		link := filepath.Join(dir, "swapped")
		must.NoError(t, os.Symlink(outside, link))
		_, err := run(&Spec{Command: task.Command{Path: "prog", Dir: "/", Lookup: []string{link}}}, nil)
		test.ErrorContains(t, err, "is not executable")
		st, err := os.Stat(outside + "/prog")
		must.NoError(t, err, must.Sprint("mode"))
		test.Eq(t, 0o644, st.Mode(), test.Sprint("mode"))
	})
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	must.NoError(t, os.Rename(from, to))
}

func TestLauncher_SearchesDirectoriesInOrder(t *testing.T) {
	dir := t.TempDir()
	at := func(place string) string {
		d := filepath.Join(dir, place)
		must.NoError(t, os.MkdirAll(d, 0o755))
		return d
	}
	write := func(place, name string) {
		t.Helper()
		path := filepath.Join(at(place), name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho "+place+"\n"), 0o755))
	}
	for _, place := range []string{"local", "task", "work", "path1", "path2"} {
		at(place)
		write(place, "in-"+place)
		write(place, "everywhere")
		write(place, "sub/in-"+place)
	}
	write("task", "both")
	write("path1", "both")
	write("path2", "path-only")
	// the search skips files that are not executable
	must.NoError(t, os.WriteFile(filepath.Join(dir, "path1", "path-only"), nil, 0o644))
	for command, want := range map[string]string{
		"everywhere":         "local",
		"in-task":            "task",
		"both":               "task",
		"in-path1":           "path1",
		"path-only":          "path2",
		"sub/in-task":        "task",
		"sub/in-work":        "work",
		"./in-work":          "work",
		"./everywhere":       "local",
		dir + "/path2/both2": "",
		"in-work":            "", // a bare name is not looked for in the working directory
		"sub/in-path1":       "", // a path is not looked for in PATH
	} {
		t.Run(command, func(t *testing.T) {
			e, err := run(&Spec{Command: task.Command{
				Path: command, Dir: at("work"),
				Lookup: []string{at("local"), at("task")},
				Env:    []string{"PATH=" + at("path1") + ":/nowhere:" + at("path2")},
			}}, nil)
			got := strings.TrimSpace(e.out)
			must.Eq(t, want, got, must.Sprintf("ran %q (%v)", got, err))
			test.Eq(t, (err != nil), (want == ""), test.Sprintf("ran %q (%v)", got, err))
		})
	}
}

func TestLauncher_StartsNothingWithoutSupervisor(t *testing.T) {
	nothingLeft(t)
	marker := filepath.Join(t.TempDir(), "ran")
	p, r, err := start(shell("touch "+marker), nil)
	must.NoError(t, err)
	defer r.Close()
	p.status.Close() // as the kernel does when a supervisor dies before Started
	var ws unix.WaitStatus
	_, err = unix.Wait4(p.PID, &ws, 0, nil)
	must.NoError(t, err, must.Sprint("launcher ended with"))
	test.Eq(t, 2, ws.ExitStatus(), test.Sprint("launcher ended with"))
	unix.Close(p.TakePidFD())
	_, err = os.Stat(marker)
	test.Error(t, err, test.Sprint("the program ran"))
}

func TestKill_EndsALauncher(t *testing.T) {
	nothingLeft(t)
	marker := filepath.Join(t.TempDir(), "ran")
	p, r, err := start(shell("touch "+marker), nil)
	must.NoError(t, err)
	defer r.Close()
	waitForStage(t, p.PID, StageSetup)
	p.Kill()
	if err := unix.Kill(p.PID, 0); err != unix.ESRCH {
		t.Errorf("process still exists: %v", err)
	}
	_, err = os.Stat(marker)
	test.Error(t, err, test.Sprint("the program ran"))
}

func TestLaunch_ReportsAProgramThatEndsImmediately(t *testing.T) {
	nothingLeft(t)
	for i := range 300 {
		e, err := run(&Spec{Command: task.Command{Path: "/bin/false", Dir: "/"}}, nil)
		must.NoError(t, err, must.Sprintf("start %d: code", i))
		must.Eq(t, 1, e.status.ExitStatus(), must.Sprintf("start %d: code", i))
	}
}

func TestLauncher_IsNotBoundByTheProgramsLimits(t *testing.T) {
	testsupport.NeedRoot(t)
	nothingLeft(t)
	for name, limit := range map[string]task.Rlimit{
		"address space of 16 MiB": {Resource: unix.RLIMIT_AS, Soft: 16 << 20, Hard: 16 << 20},
		"data of 1 MiB":           {Resource: unix.RLIMIT_DATA, Soft: 1 << 20, Hard: 1 << 20},
		"one process":             {Resource: unix.RLIMIT_NPROC, Soft: 1, Hard: 1},
		"four open files":         {Resource: unix.RLIMIT_NOFILE, Soft: 4, Hard: 4},
	} {
		t.Run(name, func(t *testing.T) {
			for range 40 {
				spec := &Spec{Command: task.Command{
					Path: "/bin/echo", Args: []string{"ok"}, Dir: "/",
					Env:     []string{"BIG=" + strings.Repeat("x", 100_000)},
					User:    &task.User{UID: 54321, GID: 54321},
					Rlimits: []task.Rlimit{limit},
				}}
				e, err := run(spec, nil)
				must.NoError(t, err, must.Sprintf("got %q, status %v", e.out, e.status))
				must.Eq(t, "ok\n", e.out, must.Sprintf("got %q, status %v", e.out, e.status))
				must.Eq(t, 0, e.status.ExitStatus(), must.Sprintf("got %q, status %v", e.out, e.status))
				// under this limit, a failed start can still report its error
				spec.Command.Path = "/etc/passwd"
				_, err = run(spec, nil)
				must.ErrorContains(t, err, "is not executable", must.Sprint("got error"))
			}
		})
	}
}
