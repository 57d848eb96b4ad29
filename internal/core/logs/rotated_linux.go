// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Config says where the output of one stream of one task goes.
type Config struct {
	// AllocDir is the allocation's directory, absolute.
	AllocDir string

	// Name is what the files are called before the index: <task>.stdout or <task>.stderr.
	Name string

	// MaxFiles is how many files are kept; 0 means 10, as in Nomad.
	MaxFiles int

	// MaxFileSize is the size in bytes at which the next file begins; 0 means
	// 10 MiB, as in Nomad. Files end with a line if they can (see cut).
	MaxFileSize int64

	// Grace is how long output waits for a file that can't be written before it
	// is dropped; 0 means 10 s.
	Grace time.Duration
}

// rotated is one stream's way to its files.
type rotated struct {
	limit int64
	files files
	stall stall
	stuck time.Time // no next file could be made; not tried again before
}

func (cfg Config) rotated() (r rotated, err error) {
	if !filepath.IsAbs(cfg.AllocDir) {
		return r, fmt.Errorf("failed to open log: allocation directory %q is not absolute", cfg.AllocDir)
	}
	if cfg.Name == "" || strings.ContainsAny(cfg.Name, "/\x00") {
		return r, fmt.Errorf("failed to open log: %q is no file name", cfg.Name)
	}
	if cfg.MaxFiles < 0 || cfg.MaxFileSize < 0 || cfg.Grace < 0 {
		return r, errors.New("failed to open log: a limit is negative")
	}
	if cfg.MaxFiles == 0 {
		cfg.MaxFiles = 10
	}
	if cfg.MaxFileSize == 0 {
		cfg.MaxFileSize = 10 << 20
	}
	if cfg.Grace == 0 {
		cfg.Grace = defaultGrace
	}
	return rotated{
		limit: cfg.MaxFileSize,
		files: files{allocDir: cfg.AllocDir, name: cfg.Name, max: cfg.MaxFiles, dir: -1, file: -1, keep: KeepNone},
		stall: stall{label: label(cfg.Name), grace: cfg.Grace},
	}, nil
}

// source has the bytes that are written.
type source interface {
	// cut applies the function cut to the n bytes behind the first moved ones.
	cut(moved, n int, size int64) (take int, rotate bool)

	// move writes n bytes behind the first moved ones to this offset of the file.
	// unix.EAGAIN is the end of what there is.
	move(moved, n int, at int64) (int, error)
}

// write moves n bytes to files. It stops at the first error, which is
// returned bare; all before it have been written, and none behind it taken.
func (r *rotated) write(now time.Time, n int, from source) (moved int, err error) {
	if r.files.file < 0 {
		if err := r.files.open(); err != nil {
			return 0, cause(err)
		}
	}
	for moved < n {
		// each time, as O_APPEND would: the file may have been truncated or removed
		var st unix.Stat_t
		if err := unix.Fstat(r.files.file, &st); err != nil {
			return moved, err
		}
		if st.Nlink == 0 {
			if r.rotate(now) {
				continue
			}
			if st.Size >= r.limit { // it has no name to be read by, but it takes space
				_ = unix.Ftruncate(r.files.file, 0) // if it fails, the file goes on
				st.Size = 0
			}
		}
		take, full := n-moved, false
		if st.Size+int64(take) > r.limit && now.After(r.stuck) {
			take, full = from.cut(moved, take, st.Size)
		}
		if take > 0 {
			k, err := from.move(moved, take, st.Size)
			moved += k
			if err == unix.EAGAIN { // another reader was faster
				return moved, nil
			}
			if err != nil {
				return moved, err
			}
			if k < take {
				continue
			}
		}
		if full {
			r.rotate(now)
		}
	}
	return moved, nil
}

// midLine reports whether the file, of this size, does not end with a line's end.
func (r *rotated) midLine(size int64) bool {
	if size == 0 {
		return false
	}
	var last [1]byte
	k, _ := retry(func() (int, error) { return unix.Pread(r.files.file, last[:], size-1) })
	return k == 1 && last[0] != '\n'
}

// rotate begins the next file. If that can't be made the old one goes on,
// beyond its size: better a big file than none.
func (r *rotated) rotate(now time.Time) bool {
	if !now.After(r.stuck) {
		return false
	}
	err := r.files.next()
	if err == nil {
		r.stuck = time.Time{}
		return true
	}
	if r.stuck.IsZero() {
		r.stall.report("goes on in %s: %v", r.files.path(r.files.index), err)
	}
	r.stuck = now.Add(retryEvery)
	return false
}

// cause is the innermost error: what a user needs of "failed to …: open …: no space left on device".
func cause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) && (errno == unix.ENOSPC || errno == unix.EDQUOT) {
		return errno
	}
	return err
}
