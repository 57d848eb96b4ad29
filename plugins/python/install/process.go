// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

// program is one to run.
type program struct {
	as     *syscall.Credential // nil: this process's user
	argv   []string            // the first is its path, absolute
	env    []string
	dir    string
	writes []string // the directories in which alone it changes files, see confine; nil: as its user may
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
		// never unlocked, so that it ends with this function.
		runtime.LockOSThread()
		if err := confine(p.writes); err != nil {
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

// confine keeps this thread, and what it starts, from changing files outside of these directories (landlock(7)). uv
// takes names of files from wheels, and 0.6.14 does not check those of console scripts. Without directories, or where
// there is no Landlock (before Linux 5.13, switched off, or kept from this process), nothing is confined.
func confine(writable []string) error {
	if len(writable) == 0 {
		return nil
	}
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return nil
	}
	onFile := uint64(unix.LANDLOCK_ACCESS_FS_WRITE_FILE)
	if version >= 3 {
		onFile |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	all := onFile | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	if version >= 2 { // before that, Landlock allows no links from one directory to another, and uv copies
		all |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	attr := unix.LandlockRulesetAttr{Access_fs: all}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("failed to confine a build: %w", errno)
	}
	ruleset := os.NewFile(fd, "Landlock ruleset")
	defer ruleset.Close()
	err := allow(ruleset, "/dev/null", unix.O_NOFOLLOW, onFile)
	for _, dir := range writable {
		err = errors.Join(err, allow(ruleset, dir, unix.O_NOFOLLOW|unix.O_DIRECTORY, all))
	}
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) // of this thread
	}
	if err == nil {
		_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset.Fd(), 0, 0)
		if errno != 0 {
			err = errno
		}
	}
	if err != nil {
		return fmt.Errorf("failed to confine a build: %w", err)
	}
	return nil
}

// allow adds to a ruleset what is allowed at a path, and below it.
func allow(ruleset *os.File, path string, flags int, access uint64) error {
	at, err := os.OpenFile(path, unix.O_PATH|flags, 0)
	if err != nil {
		return err
	}
	defer at.Close()
	fd := int32(at.Fd()) //nolint:gosec // a descriptor
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: fd}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, ruleset.Fd(), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
