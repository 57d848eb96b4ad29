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

// program is zfs or zpool, run for one pool.
type program struct {
	path string        // absolute path
	hung *atomic.Int32 // number of programs that hang in the kernel, for this pool
}

// programLimit is the timeout of one call.
const programLimit = 45 * time.Second

// failure is the error of a program, with the line of stderr that has the reason.
type failure struct{ program, line string }

func (f *failure) Error() string { return f.program + ": " + f.line }

// run runs the program and returns its standard output. The kernel kills the program when this process ends.
func (p program) run(ctx context.Context, args ...string) (string, error) {
	if !filepath.IsAbs(p.path) {
		return "", fmt.Errorf("the path of the program %q is not absolute: %w", p.path, ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"} // Nomad gives host volume plugins no PATH
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, l := range locks(ctx) {
		cmd.ExtraFiles = append(cmd.ExtraFiles, l.File)
	}
	err := p.wait(ctx, cmd)
	if err == nil || errors.Is(err, ErrUnavailable) {
		return stdout.String(), err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("the program %s is %w (%w): install it, or set its path in the operator's file",
			p.path, ErrUnavailable, errors.Unwrap(err))
	}
	what := filepath.Base(p.path) + " " + args[0]
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s did not finish in time: %w", what, ctx.Err())
	}
	if line := reason(stderr.String()); line != "" {
		return "", &failure{what, line}
	}
	return "", fmt.Errorf("%s: %w", what, err)
}

// maxHung is how many programs may hang for one pool. The engine then starts no more programs for that pool.
const maxHung = 8

// hung has the number of hanging programs of each pool, as an *atomic.Int32. A pool that hangs must not block others.
var hung sync.Map

func hungIn(pool string) *atomic.Int32 {
	n, _ := hung.LoadOrStore(pool, &atomic.Int32{})
	return n.(*atomic.Int32)
}

// wait starts a program, in the caller's thread, and waits until it exits. If the context ends, the program is killed.
// If the program still hangs in the kernel 5 seconds later, it is abandoned.
func (p program) wait(ctx context.Context, cmd *exec.Cmd) error {
	if p.hung.Load() >= maxHung {
		return fmt.Errorf("%s is %w: %d calls of it hang (see: zpool status)", cmd.Path, ErrUnavailable, maxHung)
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
	case <-time.After(5 * time.Second): // the program was killed, but has not ended
		p.hung.Add(1)
		for _, l := range locks(ctx) {
			l.hangs.Store(true)
		}
		go func() {
			<-ended
			p.hung.Add(-1)
		}()
		return fmt.Errorf("%s is %w: it hangs (see: zpool status)", cmd.Path, ErrUnavailable)
	}
}

// reason returns the line of stderr that has the error: after it, zfs may print advice.
func reason(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for _, line := range lines {
		if strings.HasPrefix(line, "cannot ") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}
