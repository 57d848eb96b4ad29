// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// program is one to run.
type program struct {
	as     *syscall.Credential // nil: this process's user
	argv   []string            // the first is its path, absolute
	env    []string
	dir    string
	stdout io.Writer // may be the same as stderr
	stderr io.Writer
}

// run runs a program to its end. When ctx ends, the program and its children are killed, and the error is that of ctx;
// otherwise it is that of package os/exec. The kernel kills the program with this process. When run returns, no process
// of the program's session is left.
func (p program) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, p.env, p.stdout, p.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.as, Setsid: true, Pdeathsig: syscall.SIGKILL}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = kill
	cmd.WaitDelay = time.Second // for children in another session that hold the pipe

	// The death signal is that of the thread which starts the program (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to start %s: %w", filepath.Base(p.argv[0]), err)
	}
	err := cmd.Wait()
	_ = kill() // the children in its session
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, exec.ErrWaitDelay):
		return nil
	}
	return err
}

// errLate is the error of a program that did not end in time.
var errLate = errors.New("did not answer")

// ask runs a program in the directory / to its end, for limit at most, and returns its output. The error is that of
// ctx, wraps errLate, or is that of package os/exec with the program's last line.
func ask(
	ctx context.Context, limit time.Duration, as *syscall.Credential, env []string, argv ...string,
) (string, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var answer, complaint bytes.Buffer
	err := program{as, argv, env, "/", &answer, &complaint}.run(limited)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil && limited.Err() != nil:
		return "", fmt.Errorf("%w within %s", errLate, limit)
	case err != nil && complaint.Len() > 0:
		lines := bytes.Split(bytes.TrimSpace(complaint.Bytes()), []byte("\n"))
		return "", fmt.Errorf("%w: %.200s", err, clean(string(lines[len(lines)-1])))
	}
	return answer.String(), err
}
