// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// launcherPath is the running binary, even if its file has been replaced since.
var launcherPath = "/proc/self/exe"

var launcherArgs = []string{"outrider-supervisor", "launch"}

// launcherEnv is the launcher's own environment; the program gets none of it.
var launcherEnv = []string{
	// the launcher is sequential, and each further thread adds 4 % to the time of a start
	"GOMAXPROCS=1",
	// a garbage collection would start more threads, in a process that lives for a millisecond
	"GOGC=off",
	// asyncpreemptoff: no signals of the runtime interrupt long system calls; containermaxprocs: with GOMAXPROCS set, the
	// runtime need not read all mounts to find the cgroup's limit
	"GODEBUG=asyncpreemptoff=1,containermaxprocs=0",
}

// Process is a launcher and, once Started has returned nil, the program that it has become. Its methods must not be
// called concurrently.
//
// Until Started has returned, nothing else may reap the process.
type Process struct {
	PID int

	// KeepMounts is called by Started, before the program runs, if the program gets its own mount namespace. ns is the
	// namespace's descriptor, which KeepMounts must close. If KeepMounts returns an error, the program is not started. If
	// KeepMounts is nil, Started closes the descriptor.
	KeepMounts func(ns *os.File) error

	pidfd  int
	status *os.File
	spec   []byte
	record string // Spec.Record

	// for the error message of a start that hangs
	program, dir, netns string
}

// Start forks a launcher with stdio as its fds 0, 1, 2 (nil means /dev/null; the caller may close the files when
// Start has returned). cgroup is the directory of the cgroup v2 group that the launcher joins (nil: the caller's own).
//
// Start returns as soon as the process exists. The launcher does nothing before Started, so the caller can save the
// process's identity first and never loses a process. If the caller dies before Started, the launcher ends by itself.
// The caller must call Started or Kill for each Process.
//
// If the spec has a Record, no other process may be forked during the call: it would hold the record's lock until it
// calls execve.
func Start(spec *Spec, stdio [3]*os.File, cgroup *os.File) (*Process, error) {
	msg, err := encodeSpec(spec)
	if err != nil {
		return nil, &Error{Stage: StageSetup, Message: err.Error()}
	}
	if err := checkThawed(cgroup); err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("failed to create socket pair: %w", err)
	}
	defer unix.Close(pair[1])
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("failed to create socket pair: %w", err)
	}
	p := &Process{
		pidfd:   -1,
		status:  os.NewFile(uintptr(pair[0]), "launcher"),
		spec:    msg,
		record:  spec.Record,
		program: spec.Command.Path,
		dir:     spec.Command.Dir,
		netns:   spec.Command.NetworkNamespace,
	}
	if err := p.fork(spec, stdio, pair[1], cgroup); err != nil {
		p.status.Close()
		return nil, err
	}
	return p, nil
}

func (p *Process) fork(spec *Spec, stdio [3]*os.File, status int, cgroup *os.File) error {
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &p.pidfd}
	if cgroup != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(cgroup.Fd())
	}
	fds := append(make([]uintptr, statusFD, recordFD+1), uintptr(status))
	for _, fd := range []int{spec.MountNamespace, spec.Task} {
		if fd != 0 {
			fds = append(fds, uintptr(fd))
		}
	}
	for i, f := range stdio {
		if f == nil {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				return fmt.Errorf("failed to open %s: %w", os.DevNull, err)
			}
			defer null.Close()
			f = null
		}
		fds[i] = f.Fd()
	}
	if spec.Record != "" && len(fds) == recordFD {
		record, err := task.NewRecord(spec.Record)
		if err != nil {
			return fmt.Errorf("failed to create the task's record: %w", err)
		}
		defer unix.Close(record) // after the fork, so that only the launcher holds the lock
		fds = append(fds, uintptr(record))
	}
	attr := &syscall.ProcAttr{Env: launcherEnv, Files: fds, Sys: sys}
	pid, err := forkExec(attr, max(spec.Task, spec.Init))
	if errors.Is(err, unix.EINVAL) && sys.PidFD != nil { // QEMU's user mode refuses to clone with a pidfd
		sys.PidFD = nil
		pid, err = forkExec(attr, max(spec.Task, spec.Init))
	}
	runtime.KeepAlive(stdio)
	runtime.KeepAlive(cgroup)
	if err != nil {
		if cgroup != nil {
			return fmt.Errorf("failed to start a launcher in cgroup %s: %w", cgroup.Name(), err)
		}
		return fmt.Errorf("failed to start a launcher: %w", err)
	}
	p.PID = pid
	if p.pidfd < 0 { // ForkExec returns no error if the kernel or a sandbox refuses a pidfd
		if p.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, 0, nil)
			return fmt.Errorf("failed to open a pidfd: %w", err)
		}
	}
	return nil
}

// forkExec starts a launcher in the PID namespace of the process whose pidfd is among. 0 means this process.
func forkExec(attr *syscall.ProcAttr, among int) (pid int, err error) {
	if among == 0 {
		return syscall.ForkExec(launcherPath, launcherArgs, attr)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread, whose children are in the namespace, ends with this goroutine
		err = unix.Setns(among, unix.CLONE_NEWPID)
		if err == nil {
			pid, err = syscall.ForkExec(launcherPath, launcherArgs, attr)
		}
	}()
	<-done
	return pid, err
}

// TakePidFD returns the process's pidfd, which the caller must close. It may be called after Started has returned
// nil.
func (p *Process) TakePidFD() int {
	fd := p.pidfd
	p.pidfd = -1
	return fd
}

// Kill kills and reaps the launcher. Call either Kill or Started, not both.
func (p *Process) Kill() { p.discard() }

// checkThawed refuses a frozen cgroup: a clone into it would block the supervisor until the thaw.
func checkThawed(cgroup *os.File) error {
	if cgroup == nil {
		return nil
	}
	events, _ := readSmall(int(cgroup.Fd()), "cgroup.events")
	if strings.Contains(string(events), "frozen 1") {
		return &Error{Stage: StageSetup, Message: fmt.Sprintf("cgroup %s is frozen", cgroup.Name())}
	}
	return nil
}
