// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// program is one of ZFS, by its absolute path.
type program string

// programLimit is how long one call may take.
const programLimit = 45 * time.Second

// failure is what a program wrote as the reason.
type failure struct{ program, line string }

func (f *failure) Error() string { return f.program + ": " + f.line }

// run runs the program and returns what it wrote to its standard output. It ends with this process, so that no
// other one finds it at work after the lock of its dataset has gone.
func (p program) run(ctx context.Context, args ...string) (string, error) {
	if !filepath.IsAbs(string(p)) {
		return "", fmt.Errorf("the program %q must be an absolute path: %w", string(p), ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, string(p), args...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"} // a host volume plugin gets none
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := wait(ctx, cmd)
	if err == nil || errors.Is(err, ErrUnavailable) {
		return stdout.String(), err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("the program %s can't be run (%w): install it, or name its path in the operator's file: %w",
			p, errors.Unwrap(err), ErrUnavailable)
	}
	what := filepath.Base(string(p)) + " " + verb(args)
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s did not end in time: %w", what, ctx.Err())
	}
	if line := reason(stderr.String()); line != "" {
		return "", &failure{what, line}
	}
	return "", fmt.Errorf("%s: %w", what, err)
}

// maxHung is the number of programs that may hang in the kernel before no other is started.
const maxHung = 8

var hung atomic.Int32

// wait starts a program, in the caller's thread, and waits for its end. One that a device
// which does not answer keeps from ending, even when it is killed, is left to itself.
func wait(ctx context.Context, cmd *exec.Cmd) error {
	if hung.Load() >= maxHung {
		return fmt.Errorf("%d calls of %s do not end: %w", maxHung, cmd.Path, ErrUnavailable)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(5 * time.Second): // it was killed, and its pipes closed
		hung.Add(1)
		go func() {
			<-ended
			hung.Add(-1)
		}()
		return fmt.Errorf("%s does not end: %w", cmd.Path, ErrUnavailable)
	}
}

// verb is the words of a command before its options and names.
func verb(args []string) string {
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") || strings.ContainsAny(arg, "/@.=") || i == 2 {
			return strings.Join(args[:i], " ")
		}
	}
	return strings.Join(args, " ")
}

// reason is the line that tells why a program failed. After zfs's there may be advice;
// others have it last.
func reason(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for _, line := range lines {
		if strings.HasPrefix(line, "cannot ") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimPrefix(strings.TrimSpace(lines[len(lines)-1]), "ERROR: ")
}
