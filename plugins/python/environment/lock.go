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

// A lock is on one byte of the lock file, and an open file description's (fcntl(2),
// F_OFD_SETLK): the kernel gives it back when the process ends, however that happens,
// and it also holds between goroutines. What is locked:
//
//	<key>      exclusive: it is being built, in builds/<key>.*
//	<key>.<n>  shared: it is between its Get (or publication) and its Release; exclusive: it may be removed
//	downloads  shared: a build uses them; exclusive: they may be removed
//	downloads/<n>  exclusive: a build uses that one
//	salt       exclusive: it is being made
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
	f, err := os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, full(s.dir, fmt.Errorf("failed to open the cache's lock: %w", err))
	}
	sum := sha256.Sum256([]byte(name))
	l := &lock{file: f, at: int64(binary.BigEndian.Uint64(sum[:8]) >> 2)}
	err = l.set(int16(kind))
	if err == nil {
		return l, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, nil
	}
	return nil, full(s.dir, fmt.Errorf("failed to lock %s: %w", f.Name(), err))
}

// waitLock asks again and again, as F_OFD_SETLKW could not be cancelled. waiting, which
// may be nil, is called before the first wait.
func (s *store) waitLock(ctx context.Context, name string, kind lockKind, waiting func()) (*lock, error) {
	const every = 10 * time.Millisecond
	for {
		l, err := s.tryLock(name, kind)
		if l != nil || err != nil {
			return l, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(every):
		}
	}
}

// close may be called twice, and of nil. It unlocks before it closes: a child that is between
// fork and exec has the description too.
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
	for {
		err := unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: l.at, Len: 1})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
