// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
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

// try is session for a command that may be refused.
func (a *alloc) try(t testing.TB, argv ...string) (string, error) {
	i, _, err := a.info()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	code, err := a.n.Client().Allocations().Exec(ctx, i, "main", false, argv, strings.NewReader(""), &out, &errOut, nil,
		nil)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errOut.String())
	}
	return out.String(), err
}
