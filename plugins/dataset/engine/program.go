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
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// program is one of ZFS, for one pool.
type program struct {
	path string        // absolute
	hung *atomic.Int32 // how many of its calls hang in the kernel
}

// programLimit is how long one call may take.
const programLimit = 45 * time.Second

// failure is what a program wrote as the reason.
type failure struct{ program, line string }

func (f *failure) Error() string { return f.program + ": " + f.line }

// run runs the program and returns what it wrote to its standard output. It ends with this process, so that no
// other one finds it at work after the lock of its dataset has gone.
func (p program) run(ctx context.Context, args ...string) (string, error) {
	if !filepath.IsAbs(p.path) {
		return "", fmt.Errorf("the program %q must be an absolute path: %w", p.path, ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"} // a host volume plugin gets none
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := p.wait(ctx, cmd)
	if err == nil || errors.Is(err, ErrUnavailable) {
		return stdout.String(), err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("the program %s can't be run (%w): install it, or name its path in the operator's file: %w",
			p.path, errors.Unwrap(err), ErrUnavailable)
	}
	what := filepath.Base(p.path) + " " + args[0]
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s did not end in time: %w", what, ctx.Err())
	}
	if line := reason(stderr.String()); line != "" {
		return "", &failure{what, line}
	}
	return "", fmt.Errorf("%s: %w", what, err)
}

// maxHung is the number of a pool's programs that may hang in the kernel before no other is started.
const maxHung = 8

// hung has the number of those that do, an *atomic.Int32 for each pool: one that hangs holds up no other.
var hung sync.Map

func hungIn(pool string) *atomic.Int32 {
	n, _ := hung.LoadOrStore(pool, &atomic.Int32{})
	return n.(*atomic.Int32)
}

// wait starts a program, in the caller's thread, and waits for its end. One that a device
// which does not answer keeps from ending, even when it is killed, is left to itself.
func (p program) wait(ctx context.Context, cmd *exec.Cmd) error {
	if p.hung.Load() >= maxHung {
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
		p.hung.Add(1)
		go func() {
			<-ended
			p.hung.Add(-1)
		}()
		return fmt.Errorf("%s does not end: %w", cmd.Path, ErrUnavailable)
	}
}

// reason is the line that tells why a program failed: after zfs's there may be advice.
func reason(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for _, line := range lines {
		if strings.HasPrefix(line, "cannot ") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}
