package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process names one process for ever: a pid alone is used again by the kernel.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`   // field 22 of /proc/<pid>/stat, proc_pid_stat(5)
	Boot  string `json:"boot_id"` // start times count from boot
}

// identify returns the identity of a process that exists now.
func identify(pid int) (Process, error) {
	start, _, err := stat(pid)
	if err != nil {
		return Process{}, fmt.Errorf("failed to identify process %d: %w", pid, err)
	}
	return Process{PID: pid, Start: start, Boot: bootID()}, nil
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// stat returns the start time and the state letter of a process.
func stat(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// the command name is in parentheses and may contain any of " ()"
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return 0, 0, fmt.Errorf("malformed /proc/%d/stat", pid)
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0][0], err
}

// alive says whether this very process runs. A zombie does not.
func (p Process) alive() bool {
	if p.PID <= 0 || p.Boot != bootID() {
		return false
	}
	start, state, err := stat(p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// signal sends sig to this very process, through a pidfd so that a reused pid is
// never hit. A process that is gone is not an error.
func (p Process) signal(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.alive() { // checked while the pidfd holds the pid
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("failed to signal process %d: %w", p.PID, err)
	}
	return nil
}

// gone waits until the process has ended.
func (p Process) gone(ctx context.Context) error {
	for p.alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d is still there: %w", p.PID, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// processes returns what was started by the agent of dir: whoever has its mark in
// the environment, or runs a program below dir.
func processes(dir string) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	mark := []byte(markVar + "=" + dir)
	var found []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := identify(pid)
		if err != nil {
			continue // ended meanwhile
		}
		if (marked(pid, mark) || runsBelow(pid, dir)) && p.alive() {
			found = append(found, p)
		}
	}
	return found, nil
}

// marked reads the environment a process was started with. What may not be read
// belongs to somebody else.
func marked(pid int, mark []byte) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(v, mark) {
			return true
		}
	}
	return false
}

func runsBelow(pid int, dir string) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false
	}
	return strings.HasPrefix(exe, dir+string(filepath.Separator))
}

// command is the process's command line, for people.
func (p Process) command() string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
	return strings.TrimSpace(string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
}

// killAll ends every process that processes finds, until none is left: one may
// start another while it is being killed.
func killAll(ctx context.Context, dir string) error {
	for {
		found, err := processes(dir)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, p := range found {
			if err := p.signal(unix.SIGKILL); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes do not end, the first is %d (%s): %w", len(found), found[0].PID, found[0].command(), ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
