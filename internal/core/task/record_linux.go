// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A record is a file of one page that is made when a task's launcher starts. Later it also stores that the program was
// executed, and how it ended. The whole page is written at the start, so these updates need no further disk space.
//
//	0      RecordMark, from just before execve(2) on
//	8      length of the exit's JSON, 4 bytes, 0 if no exit is recorded
//	12     FNV-1a sum of the JSON, 8 bytes
//	20     the JSON
//
// Only the launcher holds a lock on the record (fcntl_locking(2), F_OFD_SETLK); execve and the launcher's death
// release it. The lock and the mark therefore distinguish a launcher from a program, even if the program changes its
// own name and arguments.
const (
	recordSize = 4096
	exitAt     = 8
	exitHeader = 4 + 8

	// RecordMark is the first byte of the record of a program that was executed.
	RecordMark = 'X'
)

// Record is the path of a task's record.
func (s Store) Record(id string) string { return filepath.Join(s.TaskDir(id), "record") }

// NewRecord makes a record and locks it. The directory must exist. The returned descriptor is
// close-on-exec; the caller closes it. The lock lasts until the last duplicate of the descriptor
// is closed.
func NewRecord(path string) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, &fs.PathError{Op: "create", Path: path, Err: err}
	}
	// write zeros: a file system allocates no space for a hole
	n, err := unix.Pwrite(fd, make([]byte, recordSize), 0)
	if err == nil && n < recordSize {
		err = unix.ENOSPC
	}
	if err == nil {
		err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err != nil {
		unix.Close(fd)
		return -1, &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return fd, nil
}

// Progress is the stage that the start of a task has reached.
type Progress int

const (
	// ProgressUnknown means that the record is missing or incomplete.
	ProgressUnknown Progress = iota
	// ProgressLaunching means that the launcher is running. It may still execute the program or fail.
	ProgressLaunching
	// ProgressNever means that the launcher has exited without executing the program.
	ProgressNever
	// ProgressExecuted means that the program was executed. A launcher that was killed during
	// execve(2) counts as the program.
	ProgressExecuted
)

// ReadProgress reads the record at path.
func ReadProgress(path string) Progress {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ProgressUnknown
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return ProgressUnknown
	}
	if lock.Type != unix.F_UNLCK {
		return ProgressLaunching
	}
	// read after the lock check: a launcher that released the lock no longer writes the mark
	var b [recordSize]byte
	if n, _ := f.ReadAt(b[:], 0); n < recordSize {
		return ProgressUnknown
	}
	if b[0] != RecordMark {
		return ProgressNever
	}
	return ProgressExecuted
}

// SaveExit stores in the task's record how the task ended. A Reason that is too long is truncated. After an error the
// record contains either no exit or the complete one.
func (s Store) SaveExit(id string, e *Exit) error {
	b, err := encodeExit(*e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.Record(id), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) { // the record was removed
		if err := os.MkdirAll(s.TaskDir(id), 0o700); err != nil {
			return err
		}
		f, err = os.OpenFile(s.Record(id), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return err
	}
	// no fsync: if the kernel crashes, the task is gone as well
	_, err = f.WriteAt(b, exitAt)
	return errors.Join(err, f.Close())
}

// LoadExit returns how a task ended, or nil if no exit is recorded or the record is unreadable. It
// also finds the record of a retired task.
func (s Store) LoadExit(id string) *Exit {
	b, err := os.ReadFile(s.Record(id))
	if errors.Is(err, fs.ErrNotExist) {
		b, err = os.ReadFile(s.retired(id))
	}
	if err != nil {
		return nil
	}
	return decodeExit(b)
}

func encodeExit(e Exit) ([]byte, error) {
	for {
		b, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		if exitAt+exitHeader+len(b) <= recordSize {
			head := binary.LittleEndian.AppendUint32(nil, uint32(len(b)))
			return append(binary.LittleEndian.AppendUint64(head, sum(b)), b...), nil
		}
		e.Reason = e.Reason[:len(e.Reason)/2]
	}
}

// decodeExit returns nil if the record has no exit or is damaged.
func decodeExit(record []byte) *Exit {
	if len(record) < exitAt+exitHeader {
		return nil
	}
	record = record[exitAt:]
	n, want := binary.LittleEndian.Uint32(record), binary.LittleEndian.Uint64(record[4:])
	record = record[exitHeader:]
	if n == 0 || uint64(n) > uint64(len(record)) || sum(record[:n]) != want {
		return nil
	}
	var e Exit
	if json.Unmarshal(record[:n], &e) != nil {
		return nil
	}
	return &e
}

func sum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}
