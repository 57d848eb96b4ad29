// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/builders"
)

// Prober is the user that runs programs to learn their versions. It never builds, so a probe does not delay a build.
const Prober = builders.First

// User is a user and group without an account that own nothing else on the node.
type User struct{ UID, GID uint32 }

// Users are the users of the node that build, each in one build at a time, of any process.
type Users struct {
	// Dir is builders.Dir except in tests.
	Dir string

	// Only is the only user that builds. If it is nil, all of builders.First to builders.Last except Prober do.
	Only *User
}

// Declare makes Only known to all drivers of the node. Call it before anything is built.
func (u *Users) Declare() error {
	if u.Only == nil {
		return nil
	}
	return builders.Declare(u.Dir, u.Only.UID, u.Only.GID)
}

// Builder is the user of one build.
type Builder struct {
	UID, GID uint32
	Clear    func() error // kills the user's processes, and returns when none is left
	Release  func()       // lets others build as the user
}

// Take waits for a user that has neither a build nor a process. It calls waiting, which may be nil, before the first
// wait. It kills processes of an earlier build. If Only is outside of the ids that are reserved for builders, its
// processes may be others', and are an error instead.
func (u *Users) Take(ctx context.Context, waiting func()) (*Builder, error) {
	if err := builders.Make(u.Dir); err != nil {
		return nil, err
	}
	if err := u.Declare(); err != nil {
		return nil, err
	}
	return poll(ctx, waiting, u.try)
}

// try returns nil if all users are taken.
func (u *Users) try() (*Builder, error) {
	if u.Only != nil {
		b, left, err := u.takeUser(*u.Only, builders.Reserved(u.Only.UID))
		if len(left) > 0 {
			err = fmt.Errorf("user %d has a process (%d, %s), and could change with it what is built: "+
				"name another user as build_user", u.Only.UID, left[0].pid, left[0].name)
		}
		return b, err
	}
	// First those without processes: a process may belong to an agent that does not share this directory, or not end.
	var failed error
	for _, evict := range []bool{false, true} {
		for id := uint32(Prober + 1); id <= builders.Last; id++ {
			b, _, err := u.takeUser(User{id, id}, evict)
			if b != nil || err != nil && !evict { // without eviction an error is not about this user
				return b, err
			}
			failed = cmp.Or(err, failed)
		}
	}
	return nil, failed
}

// takeUser returns no Builder if another build has the user, or if it has processes and evict is false.
func (u *Users) takeUser(user User, evict bool) (b *Builder, left []process, err error) {
	b, err = u.lock(user)
	if b == nil || err != nil {
		return nil, nil, err
	}
	if evict {
		err = b.Clear()
	} else {
		left, err = processes(user.UID)
	}
	if err != nil || len(left) > 0 {
		b.Release()
		b = nil
	}
	return b, left, err
}

// lock returns nil if another build has the user.
func (u *Users) lock(user User) (*Builder, error) {
	l, err := lockByte(filepath.Join(u.Dir, "lock"), int64(user.UID), exclusive)
	if l == nil || err != nil {
		return nil, err
	}
	return &Builder{user.UID, user.GID, func() error { return clear(user.UID) }, l.close}, nil
}

// grace is how long a killed process may take to end. One that waits for a disk cannot end.
const grace = 15 * time.Second

// clear kills all processes of a user, and returns when none is left.
func clear(uid uint32) error {
	for end := time.Now().Add(grace); ; time.Sleep(5 * time.Millisecond) {
		left, err := processes(uid)
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d (%s) of user %d, which builds, does not end, and could change what is built",
				left[0].pid, left[0].name, uid)
		}
		for _, p := range left {
			p.kill(uid)
		}
	}
}

type process struct {
	pid  int
	name string
}

// processes are all that still run and have the user as any of their user ids.
func processes(uid uint32) (found []process, err error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("failed to look for processes of a user that builds: %w", err)
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("failed to look for processes of a user that builds: %w", err)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		has, comm, err := isOf(pid, uid)
		if err != nil {
			return nil, fmt.Errorf("failed to look for processes of a user that builds: %w", err)
		}
		if has {
			found = append(found, process{pid, comm})
		}
	}
	return found, nil
}

// isOf reports whether a process still runs and has a user as any of its user ids (proc_pid_status(5)).
func isOf(pid int, uid uint32) (has bool, name string, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, "", nil
	}
	if err != nil {
		return false, "", err
	}
	want := strconv.FormatUint(uint64(uid), 10)
	dead := false
	for line := range bytes.Lines(status) {
		key, value, _ := strings.Cut(string(line), ":")
		fields := strings.Fields(value)
		switch key {
		case "Name":
			name = fmt.Sprintf("%q", strings.TrimSpace(value))
		case "State":
			dead = len(fields) > 0 && (fields[0] == "Z" || fields[0] == "X")
		case "Uid":
			has = slices.Contains(fields, want) // real, effective, saved, of the file system
		case "Threads":
			if dead && len(fields) > 0 && (fields[0] == "0" || fields[0] == "1") {
				return false, "", nil // with more threads, only the first one has ended
			}
		}
	}
	return has, name, nil
}

// kill kills the process if it is still the user's, and not another one that has its number meanwhile.
func (p process) kill(uid uint32) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if has, _, err := isOf(p.pid, uid); has && err == nil {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
