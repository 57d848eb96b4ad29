// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package inuse tells which processes use a file system: have it
// mounted in any mount namespace, have a file of it open or mapped, run a program of it, or
// have it as their directory or root. It needs the rights of root, and a /proc of the
// processes to be found: those outside of this process's pid namespace are not seen. Neither
// are descriptors on their way through a socket, nor a mount namespace without a process.
//
// File systems that do not answer can't delay it: no file is opened and no attribute is
// fetched, only what the kernel remembers is read.
package inuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// limit is how long a look at one process may take. One that the kernel does not let us look
// at for so long is an error. All together take as long as they take: on a busy machine, many
// seconds.
const limit = 10 * time.Second

// Users returns a line for each process that uses one of these directories ("process 123
// (sleep) has a file of it open"). Each has all that is on its file system, and its path is
// absolute and has no symbolic links. A process that ends meanwhile is none. One that can't be
// looked into is an error, since it may be a user.
func Users(ctx context.Context, dirs ...string) ([]string, error) {
	return users(ctx, scan{}, dirs...)
}

// OfMount is Users of a file system by its source as in mountinfo, such as a ZFS dataset. Where
// it is mounted at dir, that mount does not count by itself, and neither do those at the same
// path in other mount namespaces that may be unmounted with it. Without dir each mount does,
// and open files are not looked for.
func OfMount(ctx context.Context, source, dir string) ([]string, error) {
	if dir == "" {
		return users(ctx, scan{source: source})
	}
	return users(ctx, scan{source: source, except: dir}, dir)
}

func users(ctx context.Context, s scan, dirs ...string) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx, s.next, s.devices, s.namespaces = ctx, make(chan string), map[uint64]bool{}, map[string]bool{}
	done := make(chan error, 1)
	go func() { done <- s.run(dirs) }() // ends with the first process after ctx
	at, stuck := "its own mounts", time.NewTimer(limit)
	defer stuck.Stop()
	for {
		select {
		case err := <-done:
			return s.users, err
		case pid := <-s.next:
			at = "process " + pid
			stuck.Reset(limit)
		case <-stuck.C:
			return nil, fmt.Errorf("failed to look at %s: the kernel did not answer for %s", at, limit)
		case <-ctx.Done():
			return nil, fmt.Errorf("the look at all processes ended at %s: %w", at, ctx.Err())
		}
	}
}

// scan is one look at all processes.
type scan struct {
	ctx        context.Context
	source     string // of mounts that count,
	except     string // but not here, where
	own        string // this mount's id, which no mount of another namespace has
	group      string // this mount is mounted on one of these
	targets    []target
	devices    map[uint64]bool // of the targets' files
	namespaces map[string]bool // mount namespaces that were looked at
	users      []string
	next       chan string // the process that is looked at from now on
}

func (s *scan) run(dirs []string) error {
	if err := s.resolve(dirs); err != nil {
		return err
	}
	s.loops()
	proc, err := os.Open("/proc")
	if err != nil {
		return err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		select {
		case s.next <- name:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		if err := s.process(int(proc.Fd()), name); err != nil && !gone(err) {
			return fmt.Errorf("failed to look at process %s, which may use it: %w", name, err)
		}
	}
	return nil
}

// gone reports whether an error is that of a process, thread or descriptor which ended.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// process adds a process if it is a user.
func (s *scan) process(proc int, pid string) error {
	fd, err := unix.Openat(proc, pid, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), pid)
	defer dir.Close()
	why, err := s.use(fd, pid)
	if errors.Is(err, fs.ErrPermission) { // also what the kernel says of a link of what has just ended
		why, err = s.use(fd, pid)
	}
	if errors.Is(err, fs.ErrPermission) {
		if _, err := read(fd, "stat"); err != nil {
			return err
		}
	}
	if errors.Is(err, fs.ErrPermission) && pid == "1" {
		why, err = s.mountsOf(fd) // init may be of a sandbox around this system, but its mounts can be seen
	}
	if why == "" || err != nil {
		return err
	}
	comm, err := read(fd, "comm")
	if err != nil {
		return err
	}
	s.users = append(s.users, fmt.Sprintf("process %s (%s) %s", pid, strings.TrimSuffix(comm, "\n"), why))
	return nil
}

// use returns how a process uses a target. Its threads can have descriptors, directories
// and mount namespaces of their own.
func (s *scan) use(dir int, pid string) (string, error) {
	is, err := s.is(dir, "exe")
	if is || err != nil && !gone(err) {
		return "runs a program of it", err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, "task", &st, 0); err != nil {
		return "", err
	}
	single := st.Nlink == 3
	if single && gone(err) {
		return "", nil // a thread of the kernel, or a process that has ended
	}
	if is, err := s.maps(dir); is || err != nil {
		return "has a file of it mapped", err
	}
	if single {
		return s.useOfThread(dir, true, true)
	}
	tids, err := readDir(dir, "task")
	if err != nil {
		return "", err
	}
	first := "" // whose files and directories most threads share
	for _, tid := range tids {
		directories := first == "" || !shared(first, tid, kcmpFS)
		files := first == "" || !shared(first, tid, kcmpFiles)
		if !directories && !files {
			continue
		}
		task, err := unix.Openat(dir, "task/"+tid, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			var why string
			why, err = s.useOfThread(task, directories, files)
			unix.Close(task)
			if why != "" {
				return why, err
			}
		}
		switch {
		case err == nil:
			first = tid
		case !gone(err):
			return "", err
		}
	}
	return "", nil
}

func (s *scan) useOfThread(task int, directories, files bool) (string, error) {
	if directories {
		if why, err := s.directories(task); why != "" || err != nil {
			return why, err
		}
	}
	if files {
		return s.files(task)
	}
	return "", nil
}

// directories looks at the directories of a thread, and at its mounts.
func (s *scan) directories(task int) (string, error) {
	for _, link := range []struct{ name, why string }{{"cwd", "is in its directory"}, {"root", "has it as its root"}} {
		if is, err := s.is(task, link.name); is || err != nil && !gone(err) {
			return link.why, err
		}
	}
	namespace, err := readLink(task, "ns/mnt")
	if err != nil || s.namespaces[namespace] {
		return "", err
	}
	why, err := s.mountsOf(task)
	s.namespaces[namespace] = err == nil
	return why, err
}

// mountsOf looks at the mounts of a thread's namespace.
func (s *scan) mountsOf(task int) (string, error) {
	info, err := read(task, "mountinfo")
	if errors.Is(err, unix.EINVAL) {
		return "", nil // it is ending, and has no namespace any more (mounts_open_common in fs/proc_namespace.c)
	}
	if err != nil {
		return "", err
	}
	parents := map[string]mount{}
	for line := range strings.Lines(info) { // a mount comes after what it is mounted on
		m := parseMount(line)
		if s.mounts(m, parents[m.parent]) {
			return "has it mounted at " + m.point, nil
		}
		parents[m.id] = m
	}
	return "", nil
}

// files looks at the open files of a thread.
func (s *scan) files(task int) (string, error) {
	dir, err := unix.Openat(task, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: "fd", Err: err}
	}
	defer unix.Close(dir)
	names, err := list(dir)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if is, err := s.is(dir, name); is || err != nil && !gone(err) {
			return "has a file of it open", err
		}
	}
	return "", nil
}

// is reports whether a link of /proc leads to a file of a target. A file of a file system that is
// out of order does not, whose device this need not be.
func (s *scan) is(dir int, link string) (bool, error) {
	var st unix.Statx_t
	// without a field asked for there is the device alone, also of a file that root may not see
	err := unix.Statx(dir, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, 0, &st)
	switch err {
	case nil:
		return s.devices[unix.Mkdev(st.Dev_major, st.Dev_minor)], nil
	case unix.ENOTCONN, unix.ESTALE, unix.EIO, unix.ETIMEDOUT, unix.EHOSTDOWN:
		return false, nil
	}
	return false, &os.PathError{Op: "look at", Path: link, Err: err}
}

// What two threads can share, kcmp(2). Those that share their directories have the same
// mount namespace, setns(2).
const (
	kcmpFiles = 2
	kcmpFS    = 3
)

// shared reports whether two threads certainly share something.
func shared(a, b string, what uintptr) bool {
	first, _ := strconv.Atoi(a)
	second, _ := strconv.Atoi(b)
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(first), uintptr(second), what, 0, 0, 0)
	return errno == 0 && order == 0
}
