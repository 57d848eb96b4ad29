// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A lock is on one byte of a file, and belongs to an open file description (fcntl(2), F_OFD_SETLK): the kernel releases
// it when the process ends, and it also holds between goroutines. What is locked in the cache's lock file:
//
//	<Spec.Key>      exclusive: an environment of that text is being built; shared: another waits for that
//	<id>            shared: the environment is being built, or is between its Get and its Release;
//	                exclusive: it may be removed
type lock struct {
	file *os.File
	at   int64
	once sync.Once
}

type lockKind int16

const (
	shared    lockKind = unix.F_RDLCK
	exclusive lockKind = unix.F_WRLCK
)

// tryLock returns nil without an error when another has the lock.
func (s *store) tryLock(name string, kind lockKind) (*lock, error) {
	sum := sha256.Sum256([]byte(name))
	return lockByte(s.path("lock"), int64(binary.BigEndian.Uint64(sum[:8])>>2), kind)
}

// lockByte returns nil without an error when another has the lock.
func lockByte(path string, at int64, kind lockKind) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("failed to open a lock: %w", err)
	}
	l := &lock{file: f, at: at}
	if err = l.set(int16(kind)); err == nil {
		return l, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, nil
	}
	return nil, fmt.Errorf("failed to lock %s: %w", path, err)
}

// waitLock polls, because F_OFD_SETLKW cannot be cancelled. waiting, which may be nil, is called before the first wait.
func (s *store) waitLock(ctx context.Context, name string, kind lockKind, waiting func()) (*lock, error) {
	return poll(ctx, waiting, func() (*lock, error) { return s.tryLock(name, kind) })
}

// poll calls try until it returns something or an error, and waiting, which may be nil, before the first wait.
func poll[T any](ctx context.Context, waiting func(), try func() (*T, error)) (*T, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 80*time.Millisecond) {
		t, err := try()
		if t != nil || err != nil {
			return t, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// close may be called more than once, and on nil. It unlocks before it closes, because a child that is between fork and
// exec also has the description.
func (l *lock) close() {
	if l == nil {
		return
	}
	l.once.Do(func() {
		_ = l.set(unix.F_UNLCK) // closing does it otherwise
		_ = l.file.Close()
	})
}

func (l *lock) set(kind int16) error {
	return retry(func() error {
		return unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: l.at, Len: 1})
	})
}
