// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Reader reads the files that a Stream writes, possibly in another process. It starts at a given position. Tasks can
// write to the directory, so Reader checks files as Stream does. Only one goroutine may use a Reader.
type Reader struct {
	allocDir, name string
	at             position
}

type position struct {
	file   int   // -1: not open
	number int64 // of the file
	offset int64 // in bytes
}

// NewReader returns a reader that starts in the file with this number, at this offset in bytes. If the file is gone,
// the reader starts with the next file. The files and the directory need not exist yet. The caller closes the reader.
func NewReader(allocDir, name string, number, offset int64) *Reader {
	return &Reader{allocDir: allocDir, name: name, at: position{file: -1, number: number, offset: offset}}
}

// Close closes the open file.
func (r *Reader) Close() { r.at.close() }

// Read reads up to len(b) bytes of output into b. It returns the number of their file, and n, the number of bytes. n is
// 0 if there is no more output for now.
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
	n, err = r.at.read(b) // read again, because output may have been added before the next file was made
	if n > 0 || err != nil {
		next.close()
		return r.at.number, n, err
	}
	r.at.close()
	r.at = next
	n, err = r.at.read(b)
	return r.at.number, n, err
}

// open opens the first file with this number or a higher one. If there is none yet, the file of the position is -1.
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
		// skip files that a Stream has not written, and files that it has removed
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
