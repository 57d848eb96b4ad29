// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Copy replicates one stream's files from another machine: the same bytes in files with the same numbers. So the end of
// the copy is the position to resume from, and no other state is needed. Only one goroutine may use a Copy.
type Copy struct {
	files files
	limit int64 // the largest size of a file, in bytes
}

// NewCopy returns a copy of a stream that keeps maxFiles files. A write that makes a file larger than limit bytes is an
// error. No file is made before the first write. The caller closes the copy.
func NewCopy(allocDir, name string, maxFiles int, limit int64) *Copy {
	return &Copy{files: files{allocDir: allocDir, name: name, max: maxFiles, dir: -1, file: -1}, limit: limit}
}

// Close closes the open file and directory.
func (c *Copy) Close() error { return c.files.close() }

// Write appends data to the file with this number, which must not be lower than in earlier calls. If it returns an
// error, n is the number of bytes that were written.
func (c *Copy) Write(number int64, data []byte) (n int, err error) {
	if err := c.use(number); err != nil {
		return 0, err
	}
	size, err := unix.Seek(c.files.file, 0, unix.SEEK_END)
	if err != nil {
		return 0, fmt.Errorf("failed to write log file: %w", err)
	}
	if size+int64(len(data)) > c.limit {
		return 0, fmt.Errorf("%s would exceed the limit of %d bytes", c.files.path(number), c.limit)
	}
	for n < len(data) {
		written, err := retry(func() (int, error) { return unix.Write(c.files.file, data[n:]) })
		if err != nil {
			return n, fmt.Errorf("failed to write log file: %w", err)
		}
		n += written
	}
	return n, nil
}

// use opens the file with this number for writing.
func (c *Copy) use(number int64) error {
	if c.files.file >= 0 && c.files.index == number {
		return nil
	}
	if c.files.dir < 0 {
		dir, err := openLogDir(c.files.allocDir)
		if err != nil {
			return err
		}
		known, err := list(dir, c.files.name)
		if err != nil {
			unix.Close(dir)
			return fmt.Errorf("failed to list log directory: %w", err)
		}
		c.files.dir, c.files.known = dir, known
	}
	if last := len(c.files.known) - 1; number < 0 || last >= 0 && number < c.files.known[last] {
		return fmt.Errorf("%s is older than the newest log file of the same stream", c.files.path(number))
	}
	fd, index, err := openFrom(c.files.dir, c.files.name, number)
	if err != nil {
		return err
	}
	if index != number {
		unix.Close(fd)
		return fmt.Errorf("%s exists, but is not a log file", c.files.path(number))
	}
	if c.files.file >= 0 {
		unix.Close(c.files.file)
	}
	c.files.use(fd, index)
	return nil
}
