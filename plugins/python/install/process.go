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

	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/plain"
)

// program describes how to run a program.
type program struct {
	as     *syscall.Credential // nil: this process's user
	argv   []string            // the first is its absolute path
	env    []string
	dir    string
	writes []string // the only directories where it can change files, if the kernel has Landlock; nil: unrestricted
	stdout io.Writer
	stderr io.Writer // may be the same as stdout
}

// run runs a program and waits for its end. When ctx ends, it kills the program and its children, and returns ctx.Err;
// other errors are those of package os/exec. The kernel kills the program if this process ends. When run returns, all
// processes of the program's process group have ended or been killed.
func (p program) run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		// The program inherits its confinement from the thread that starts it, and is killed when that thread ends (prctl(2),
		// PR_SET_PDEATHSIG). So the thread is never unlocked: it ends with this function. The confinement is needed because
		// uv takes file names from wheels: 0.6.14 does not check the names of console scripts.
		runtime.LockOSThread()
		err := landlock.ConfineWrites(p.writes...)
		if err != nil {
			done <- err
			return
		}
		done <- p.runOnThread(ctx)
	}()
	return <-done
}

func (p program) runOnThread(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, p.env, p.stdout, p.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.as, Setsid: true, Pdeathsig: syscall.SIGKILL}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = kill
	cmd.WaitDelay = time.Second // a child in another session may keep the pipe open
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to start %s: %w", filepath.Base(p.argv[0]), err)
	}
	err := cmd.Wait()
	_ = kill() // children that still run
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, exec.ErrWaitDelay):
		return nil
	}
	return err
}

// ask runs a program in the directory /, and returns its output. The error is ctx.Err, a temporary *Error after
// f.timeout, or an error of package os/exec with the last line of stderr.
func (f *Finder) ask(ctx context.Context, env []string, argv ...string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	var answer, complaint bytes.Buffer
	p := program{as: f.as, argv: argv, env: env, dir: "/", stdout: &answer, stderr: &complaint}
	err := p.run(limited)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil && limited.Err() != nil:
		return "", &Error{Words: fmt.Sprintf("it did not answer within %s", f.timeout), Temporary: true}
	case err != nil && complaint.Len() > 0:
		lines := bytes.Split(bytes.TrimSpace(complaint.Bytes()), []byte("\n"))
		return "", fmt.Errorf("%w: %s", err, plain.Line(string(lines[len(lines)-1]), 200))
	}
	return answer.String(), err
}
