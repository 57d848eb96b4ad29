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

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// Process names one process for ever: a pid alone is used again by the kernel.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`   // field 22 of /proc/<pid>/stat, proc_pid_stat(5)
	Boot  string `json:"boot_id"` // start times count from boot

	parent int // when identified
}

// identify returns the identity of a process that exists now.
func identify(pid int) (Process, error) {
	st, err := stat(pid)
	if err != nil {
		return Process{}, fmt.Errorf("failed to identify process %d: %w", pid, err)
	}
	return Process{PID: pid, Start: st.start, Boot: bootID(), parent: st.parent}, nil
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// status is what is needed of /proc/<pid>/stat.
type status struct {
	ended  bool // a zombie, of which no thread runs: it has no ports and files any more
	parent int
	start  uint64
}

func stat(pid int) (status, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return status{}, err
	}
	// the command name is in parentheses and may contain any of " ()"
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return status{}, fmt.Errorf("malformed /proc/%d/stat", pid)
	}
	threads, _ := strconv.Atoi(f[17])
	st := status{ended: f[0] == "X" || f[0] == "Z" && threads < 2}
	if st.parent, err = strconv.Atoi(f[1]); err != nil {
		return status{}, fmt.Errorf("malformed /proc/%d/stat: %w", pid, err)
	}
	if st.start, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return status{}, fmt.Errorf("malformed /proc/%d/stat: %w", pid, err)
	}
	return st, nil
}

// alive says whether this very process runs. A zombie does not.
func (p Process) alive() bool {
	if p.PID <= 0 || p.Boot != bootID() {
		return false
	}
	st, err := stat(p.PID)
	return err == nil && st.start == p.Start && !st.ended
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
	if err := poll.Until(ctx, 10*time.Millisecond, func() (bool, error) { return !p.alive(), nil }); err != nil {
		return fmt.Errorf("process %d is still there: %w", p.PID, err)
	}
	return nil
}

// processes returns what was started by the agent of dir, with all descendants:
// who has its mark in the environment, runs a program below dir, or is a supervisor
// that keeps its state there.
func processes(dir string) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	mark := []byte(markVar + "=" + dir)
	all := map[int]Process{}
	children := map[int][]int{}
	var roots []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := identify(pid)
		if err != nil || !p.alive() {
			continue // ended meanwhile
		}
		all[pid] = p
		children[p.parent] = append(children[p.parent], pid)
		if marked(pid, mark) || runsBelow(pid, dir) || supervises(pid, dir) {
			roots = append(roots, pid)
		}
	}
	var found []Process
	for len(roots) > 0 {
		pid := roots[0]
		roots = append(roots[1:], children[pid]...)
		if p, ok := all[pid]; ok && pid != os.Getpid() {
			found = append(found, p)
		}
		delete(all, pid) // each once
	}
	return found, nil
}

// supervises recognizes a plugin's supervisor, which has an environment of its own
// and may run from memory: its one argument names its state directory.
func supervises(pid int, dir string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.HasPrefix(b, []byte("outrider-supervisor\x00")) &&
		bytes.Contains(b, []byte(stateDir(dir)+"/"))
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

// killAll ends every process of the agent, until none is left: one may start
// another while it is being killed. It returns the cgroups that supervisors had
// made for themselves.
func killAll(ctx context.Context, dir string) (leaves []string, err error) {
	known := map[int]Process{} // an orphan cannot be found a second time
	err = poll.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		found, err := processes(dir)
		if err != nil {
			return false, err
		}
		for _, p := range found {
			leaves = append(leaves, p.ownCgroups()...)
			known[p.PID] = p
		}
		for pid, p := range known {
			if !p.alive() {
				delete(known, pid)
			} else if err := p.signal(unix.SIGKILL); err != nil {
				return false, err
			}
		}
		return len(known) == 0, nil
	})
	if err != nil {
		return leaves, fmt.Errorf("failed to end %d processes: %w", len(known), err)
	}
	return leaves, nil
}

// ownCgroups are the cgroups of the process that are named after us.
func (p Process) ownCgroups() []string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
	var dirs []string
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !strings.HasPrefix(filepath.Base(f[2]), "outrider-") {
			continue
		}
		hierarchies := []string{strings.TrimPrefix(f[1], "name=")}
		if f[1] == "" { // cgroup2, alone or beside v1
			hierarchies = []string{"", "unified"}
		}
		for _, h := range hierarchies {
			dir := filepath.Join(cgroupRoot, h, f[2])
			if _, err := os.Stat(dir); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// RunBelow lists the processes whose program is below dir: each one's id and command line.
func RunBelow(dir string) ([]string, error) {
	dir, err := resolve(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("failed to list processes: %w", err)
	}
	var found []string
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && runsBelow(pid, dir) {
			found = append(found, fmt.Sprintf("%d (%s)", pid, Process{PID: pid}.command()))
		}
	}
	return found, nil
}
