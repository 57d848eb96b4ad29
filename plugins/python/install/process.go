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

// program is one to run.
type program struct {
	as     *syscall.Credential // nil: this process's user
	argv   []string            // the first is its path, absolute
	env    []string
	dir    string
	writes []string // the directories in which alone it changes files, where the kernel has Landlock; nil: as its user may
	stdout io.Writer
	stderr io.Writer // may be the same as stdout
}

// run runs a program to its end. When ctx ends, the program and its children are killed, and the error is that of ctx;
// otherwise it is that of package os/exec. The kernel kills the program with this process. When run returns, no process
// of the program's session is left.
func (p program) run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		// The program's confinement and its death signal (prctl(2)) are those of the thread that starts it. The thread is
		// never unlocked, so that it ends with this function. uv takes names of files from wheels, and 0.6.14 does not
		// check those of console scripts.
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
	cmd.WaitDelay = time.Second // for children in another session that hold the pipe
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

// ask runs a program in the directory / to its end, and returns its output. The error is that of ctx, a temporary
// *Error if it takes too long, or that of package os/exec with the program's last line.
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
		return "", &Error{Words: fmt.Sprintf("it did not answer within %s", f.timeout), temporary: true}
	case err != nil && complaint.Len() > 0:
		lines := bytes.Split(bytes.TrimSpace(complaint.Bytes()), []byte("\n"))
		return "", fmt.Errorf("%w: %s", err, plain.Line(string(lines[len(lines)-1]), 200))
	}
	return answer.String(), err
}
