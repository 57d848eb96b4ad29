// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A lock is on one byte of a file, and belongs to an open file description (fcntl(2), F_OFD_SETLK): the kernel releases
// it when the process ends, and it also holds between goroutines. What is locked in the cache's lock file:
//
//	<Spec.Key>  exclusive: an environment of that text is being built
//	<id>        shared: the environment is being built, or is between its Get and its Release;
//	            exclusive: it may be removed
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
	at := int64(binary.BigEndian.Uint64(sum[:8]) >> 2)
	f, err := os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
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
	return nil, fmt.Errorf("failed to lock %s: %w", f.Name(), err)
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
