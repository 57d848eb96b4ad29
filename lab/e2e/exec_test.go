// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// session runs a command in a task through Nomad's API.
func (a *alloc) session(t *testing.T, tty bool, stdin io.Reader, sizes <-chan api.TerminalSize,
	argv ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	code, err := a.n.Client().Allocations().Exec(ctx, a.stub(t), "main", tty, argv, stdin, &out, &errOut, sizes, nil)
	if err != nil {
		t.Errorf("failed to run %q: %v; stdout %q, stderr %q", argv, err, out.String(), errOut.String())
	}
	return code, out.String(), errOut.String()
}

func TestExec_RunsCommandInTask(t *testing.T) {
	t.Parallel()
	a := common(t).start(t, conf{"command": "/bin/sleep", "args": []string{"600"}}, func(_ *api.Job, task *api.Task) {
		task.Env = map[string]string{"GREETING": "hello"}
	})
	defer a.stop(t)
	for _, row := range []struct {
		name, script   string
		tty            bool
		stdin          string
		code           int
		stdout, stderr string
	}{
		{name: "both streams", script: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
		{name: "exit code", script: "exit 42", code: 42},
		{name: "signal", script: "kill -TERM $$", code: 143},
		{name: "stdin to its end", script: "cat; echo end", stdin: "one\ntwo\n", stdout: "one\ntwo\nend\n"},
		{name: "the task's environment", script: "echo $GREETING $NOMAD_TASK_NAME", stdout: "hello main\n"},
		{name: "the task's directory", script: "pwd", stdout: a.dir() + "/main\n"},
		{name: "no terminal", script: "test -t 0 || test -t 1 || echo none", stdout: "none\n"},
		{name: "much output", script: "seq 1 20000 | tail -n 1; seq 1 20000 | wc -c", stdout: "20000\n108894\n"},
		{name: "silent for longer than clients are asked for", script: "sleep 5; echo x; exit 3", code: 3, stdout: "x\n"},
		{name: "exit code on a terminal", tty: true, script: "exit 42", code: 42},
		{name: "silent on a terminal", tty: true, script: "sleep 5; echo x; exit 3", code: 3, stdout: "x\r\n"},
		{name: "a terminal", tty: true, script: "test -t 0 && test -t 1 && test -t 2 && echo yes", stdout: "yes\r\n"},
	} {
		code, stdout, stderr := a.session(t, row.tty, strings.NewReader(row.stdin), nil, "/bin/sh", "-c", row.script)
		must.Eq(t, row.code, code, must.Sprint(row.name))
		must.Eq(t, row.stdout, stdout, must.Sprint(row.name))
		test.Eq(t, row.stderr, stderr, test.Sprint(row.name))
	}
}

func TestExec_IsInTasksCgroup(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	a := common(t).start(t, conf{"command": "/bin/sleep", "args": []string{"600"}})
	defer a.stop(t)
	_, stdout, _ := a.session(t, false, nil, nil, "cat", "/proc/self/cgroup")
	test.StrContains(t, stdout, a.id+".main", test.Sprint("the cgroups of the session are"))
}

func TestExec_FollowsTerminalSize(t *testing.T) {
	t.Parallel()
	a := common(t).start(t, conf{"command": "/bin/sleep", "args": []string{"600"}})
	defer a.stop(t)
	sizes := make(chan api.TerminalSize, 1)
	sizes <- api.TerminalSize{Height: 33, Width: 77}
	_, out, _ := a.session(t, true, nil, sizes, "/bin/sh", "-c",
		`for i in $(seq 1 1000); do s=$(stty size); [ "$s" = "33 77" ] && break; sleep 0.05; done; echo size $s`)
	test.StrContains(t, out, "size 33 77")
}

func TestExec_ReportsMissingCommand(t *testing.T) {
	t.Parallel()
	a := common(t).start(t, conf{"command": "/bin/sleep", "args": []string{"600"}})
	defer a.stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	code, err := a.n.Client().Allocations().Exec(ctx, a.stub(t), "main", false, []string{"/no/such/program"},
		strings.NewReader(""), &out, &errOut, nil, nil)
	said := fmt.Sprint(err, out.String(), errOut.String())
	if !strings.Contains(said, `"/no/such/program" not found`) || err == nil && code == 0 {
		t.Errorf("got %d, %q", code, said)
	}
}

func TestExec_EndsWithClientAndTask(t *testing.T) {
	t.Parallel()
	n := common(t)
	a := n.start(t, conf{"command": "/bin/sleep", "args": []string{"600"}})
	run := func(ctx context.Context, tag string) chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := n.Client().Allocations().Exec(ctx, a.stub(t), "main", false, silent(tag), strings.NewReader(""),
				io.Discard, io.Discard, nil, nil)
			ended <- err
		}()
		testsupport.Within(t, time.Minute, func() error {
			if len(n.find(isSilent(tag))) != 1 {
				return fmt.Errorf("%s does not run", tag)
			}
			return nil
		})
		return ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := run(ctx, "one")
	cancel()
	<-ended
	testsupport.Within(t, time.Minute, func() error {
		if p := n.find(isSilent("one")); len(p) > 0 {
			return fmt.Errorf("lives without its client: %v", p)
		}
		return nil
	})
	ended = run(t.Context(), "two")
	a.stop(t)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the session goes on without its task")
	}
	testsupport.Within(t, time.Minute, func() error {
		if p := n.find(isSilent("two")); len(p) > 0 {
			return fmt.Errorf("lives without its task: %v", p)
		}
		return nil
	})
}

// silent is a command that neither reads nor says anything.
func silent(tag string) []string { return []string{"/bin/sh", "-c", "sleep 600; :", tag} }

func isSilent(tag string) func(proc) bool {
	return func(p proc) bool { return slices.Equal(p.args, silent(tag)) }
}

func TestExec_EndsWithKilledClient(t *testing.T) {
	t.Parallel()
	n := common(t)
	a := n.start(t, conf{"command": "/bin/sleep", "args": []string{"600"}})
	defer a.stop(t)
	cmd := exec.Command(nomadBinary, append([]string{"alloc", "exec", "-t=false", a.id}, silent("killed")...)...)
	cmd.Env = []string{"NOMAD_ADDR=" + n.Address(), "PATH=" + os.Getenv("PATH"), "HOME=" + scratch}
	stdin, err := cmd.StdinPipe() // left open, as a shell's is
	must.NoError(t, err)
	defer stdin.Close()
	must.NoError(t, cmd.Start())
	testsupport.Within(t, time.Minute, func() error {
		if len(n.find(isSilent("killed"))) != 1 {
			return fmt.Errorf("the command does not run")
		}
		return nil
	})
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // "signal: killed"
	testsupport.Within(t, time.Minute, func() error {
		if p := n.find(isSilent("killed")); len(p) > 0 {
			return fmt.Errorf("lives without its client: %v", p)
		}
		return nil
	})
}
