// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package sandbox runs programs that are not trusted, such as installers and possible interpreters. They can write only
// to the directories that the caller names.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sandbox is a thread of this process that has given up rights. The programs that it starts inherit that, and end with
// the thread. They can write only to some directories, and cannot gain privileges. If this process is root, they also
// have no network, except for a loopback interface of their own. (Namespaces, Landlock and no_new_privs are per thread,
// so no helper program is needed: clone(2), landlock(7), prctl(2).)
type Sandbox struct {
	as       *syscall.Credential
	alone    bool // it has a network of its own
	commands chan func()
	ended    chan struct{}
}

// New starts the thread, which runs until Close. Programs run as a user (nil: this process's own). They may write to
// the existing directories writable and to /dev/shm. If this process is root, they have a /dev/shm of their own.
func New(as *syscall.Credential, writable ...string) *Sandbox {
	s := &Sandbox{as: as, commands: make(chan func()), ended: make(chan struct{})}
	go s.serve(writable)
	return s
}

// serve runs the thread. It never unlocks it, so the runtime ends the thread with its goroutine.
func (s *Sandbox) serve(writable []string) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The runtime never ends the main thread, which also represents the process in /proc.
		go s.serve(writable)
		<-s.ended
		runtime.UnlockOSThread()
		return
	}
	defer close(s.ended)
	s.confine(writable)
	for f := range s.commands {
		f()
	}
}

// do runs f on the thread.
func (s *Sandbox) do(f func()) {
	done := make(chan struct{})
	s.commands <- func() { defer close(done); f() }
	<-done
}

// Close ends the thread and the programs that it started.
func (s *Sandbox) Close() {
	close(s.commands)
	<-s.ended
}

// confine takes as many rights from this thread as it can. Some kernels and containers refuse parts of that: only the
// program's user is a boundary that always holds.
func (s *Sandbox) confine(writable []string) {
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	root := os.Geteuid() == 0
	if root && unix.Unshare(unix.CLONE_NEWNET) == nil {
		s.alone = loopbackUp() == nil
	}
	if root {
		_ = unix.Unshare(unix.CLONE_NEWIPC)
	}
	closed := root && unix.Unshare(unix.CLONE_NEWNS) == nil && readOnly(writable) == nil
	_ = landlock(writable, closed) // needed even if closed: it keeps programs from tracing other processes
}

// loopbackUp brings up lo, which is down in a new network namespace (netdevice(7)).
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// readOnly makes this mount namespace read-only, except for the directories and a /dev/shm of its own, which Python's
// semaphores need (mount_setattr(2), Linux 5.12). What the host unmounts is unmounted here, too.
func readOnly(writable []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	for _, dir := range writable {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	all := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &all); err != nil {
		return err
	}
	const shm = "/dev/shm"
	below := func(dir string) bool { return strings.HasPrefix(dir, shm+"/") }
	if !slices.ContainsFunc(writable, below) { // the mount would hide them
		_ = unix.Mount("tmpfs", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=64m")
	}
	// Hide processes that may not be traced: the arguments of another build name its directory. (proc(5). Before Linux
	// 5.8, which has hidepid=4, the option would also change the host's mount.)
	_ = unix.Mount("proc", "/proc", "proc", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "hidepid=4")
	for _, dir := range writable {
		back := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, dir, 0, &back); err != nil {
			return err
		}
	}
	return nil
}

// Listen returns a listener on the thread's own loopback; alone reports that no other process of the node can reach it.
func (s *Sandbox) Listen() (l net.Listener, alone bool, err error) {
	s.do(func() { l, err = net.Listen("tcp4", "127.0.0.1:0") })
	return l, s.alone, err
}

// Program describes a program to run.
type Program struct {
	Args           []string // Args[0] is its path, absolute
	Env            []string
	Dir            string
	Stdout, Stderr io.Writer // may be the same
}

// Run runs a program to its end. When ctx ends, the program and its children are killed, and the error is that of ctx;
// otherwise it is that of package os/exec. Output that a child still holds open is no error.
//
// When Run returns, all children have ended if this process is root and the kernel has PID namespaces. Otherwise only
// those of the program's session have.
func (s *Sandbox) Run(ctx context.Context, p Program) error {
	err := s.try(ctx, p, os.Geteuid() == 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		err = s.try(ctx, p, false) // no PID namespaces here
	}
	return err
}

func (s *Sandbox) try(ctx context.Context, p Program, pidNamespace bool) error {
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.Dir, p.Env, p.Stdout, p.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as, Setsid: true, Pdeathsig: syscall.SIGKILL}
	if pidNamespace {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for children in another session that hold the pipe, without a PID namespace
	var err error
	s.do(func() { err = cmd.Start() })
	if err != nil {
		return fmt.Errorf("failed to start %s: %w", filepath.Base(p.Args[0]), err)
	}
	err = cmd.Wait()
	if !pidNamespace {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the children in its session
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, exec.ErrWaitDelay):
		return nil
	}
	return err
}
