// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Reader reads what a Stream, maybe of another process, writes: one stream's files, from one place on.
// Tasks may write in their directory, so a file is opened as a Stream opens it. One goroutine may use it.
type Reader struct {
	allocDir, name string
	at             position
}

// position is a place in a file.
type position struct {
	file   int   // -1: not open
	number int64 // of the file
	offset int64 // in bytes
}

// NewReader returns a reader that begins in the file of this number after so many bytes. If that file is gone
// it begins with the next one. Nothing needs to exist yet. The caller closes the reader.
func NewReader(allocDir, name string, number, offset int64) *Reader {
	return &Reader{allocDir: allocDir, name: name, at: position{file: -1, number: number, offset: offset}}
}

// Close closes what is open.
func (r *Reader) Close() { r.at.close() }

// Read reads into b, and returns how many bytes it read, and of the file of which number. None are read where
// there is nothing more for now.
func (r *Reader) Read(b []byte) (number int64, n int, err error) {
	if r.at.file < 0 {
		first, err := r.open(r.at.number)
		if first.file < 0 || err != nil {
			return 0, 0, err
		}
		if first.number == r.at.number {
			first.offset = r.at.offset
		}
		r.at = first
	}
	n, err = r.at.read(b)
	if n > 0 || err != nil {
		return r.at.number, n, err
	}
	next, err := r.open(r.at.number + 1)
	if next.file < 0 || err != nil {
		return 0, 0, err
	}
	n, err = r.at.read(b) // what was written before the next file was made
	if n > 0 || err != nil {
		next.close()
		return r.at.number, n, err
	}
	r.at.close()
	r.at = next
	n, err = r.at.read(b)
	return r.at.number, n, err
}

// open opens the first file from this number on. There may be none yet.
func (r *Reader) open(from int64) (position, error) {
	none := position{file: -1}
	dir, err := openLogDir(r.allocDir)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	defer unix.Close(dir)
	known, err := list(dir, r.name)
	if err != nil {
		return none, fmt.Errorf("failed to list log directory: %w", err)
	}
	for _, number := range known {
		if number < from {
			continue
		}
		file, err := openFile(dir, fileName(r.name, number), unix.O_RDONLY)
		if err == nil {
			return position{file: file, number: number}, nil
		}
		// what is no log file was not written by a Stream, and what is gone was removed by one
		if err != errMakeWay && err != errSkip && err != unix.ENOENT && err != unix.ELOOP {
			return none, fmt.Errorf("failed to open log file: %w", err)
		}
	}
	return none, nil
}

func (p *position) read(b []byte) (int, error) {
	n, err := retry(func() (int, error) { return unix.Pread(p.file, b, p.offset) })
	if err != nil {
		return 0, fmt.Errorf("failed to read log file: %w", err)
	}
	p.offset += int64(n)
	return n, nil
}

func (p *position) close() {
	if p.file >= 0 {
		unix.Close(p.file)
		p.file = -1
	}
}
