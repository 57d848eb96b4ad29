// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"context"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Writer writes a stream that does not come from a FIFO of this host, to the same files as a Stream does.
// One goroutine may use it at a time. A write to a disk that hangs blocks until the disk answers.
type Writer struct {
	rotated
	data []byte // that is written now
}

// forever is a grace in which nothing is dropped.
const forever = 100 * 365 * 24 * time.Hour

// KeepNone is for Keep: files that are too many are removed.
const KeepNone = math.MaxInt64

// NewWriter returns a writer that appends to the newest file, or makes the first one. keep is as for Keep. If the files
// can't be opened (see Open), it returns the error and a writer: Write tries again. After any other error the
// writer is nil. Nothing is ever dropped, so cfg.Grace has no meaning.
func NewWriter(cfg Config, keep int64) (*Writer, error) {
	r, err := cfg.rotated()
	if err != nil {
		return nil, err
	}
	r.stall.grace = forever
	r.files.keep = keep
	w := &Writer{rotated: r}
	return w, w.files.open()
}

// Write writes p. While the files can't be written, since the disk is full, it tries again each second; report gets a
// sentence about that, such as "stdout waits: no space left on device". An error is the end of ctx: n bytes are
// written then.
func (w *Writer) Write(ctx context.Context, p []byte, report func(event string)) (n int, err error) {
	for {
		now := time.Now()
		w.data = p[n:]
		k, err := w.write(now, len(w.data), w)
		w.data = nil
		if n += k; err == nil {
			w.stall.succeeded(now)
		} else {
			w.stall.failed(now, err)
		}
		for _, event := range w.stall.take() {
			report(event)
		}
		if n == len(p) && err == nil {
			return n, nil
		}
		select {
		case <-time.After(time.Until(w.stall.retry)):
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

func (w *Writer) cut(moved, n int, size int64) (take int, rotate bool) {
	return cut(w.data[moved:moved+n], size, w.limit, w.midLine(size))
}

func (w *Writer) move(moved, n int, at int64) (int, error) {
	k, err := retry(func() (int, error) { return unix.Pwrite(w.files.file, w.data[moved:moved+n], at) })
	return max(k, 0), err
}

// End is where the stream ends, as the function End.
func (w *Writer) End() (index, size int64) {
	var st unix.Stat_t
	if w.files.file < 0 || unix.Fstat(w.files.file, &st) != nil {
		return End(w.files.allocDir, w.files.name)
	}
	return w.files.index, st.Size
}

// Keep keeps the file of this index and those behind it, even if they are too many; those before it are removed as
// they otherwise are. It returns how many are too many now.
func (w *Writer) Keep(index int64) int {
	w.files.keep = index
	if w.files.dir >= 0 {
		w.files.prune()
	}
	return w.files.excess()
}

// Close closes all descriptors.
func (w *Writer) Close() error { return w.files.close() }

// Behind is how many bytes of a stream are behind a place in its files.
func Behind(allocDir, name string, index, offset int64) (n int64, err error) {
	err = eachFrom(allocDir, name, index, func(_ int, st *unix.Stat_t, _ string, i int64) error {
		if n += st.Size; i == index {
			n -= min(offset, st.Size)
		}
		return nil
	})
	return n, err
}

// Truncate removes what is behind a place in the files of a stream.
func Truncate(allocDir, name string, index, offset int64) error {
	return eachFrom(allocDir, name, index, func(dir int, st *unix.Stat_t, path string, i int64) error {
		if i > index {
			return unix.Unlinkat(dir, path, 0)
		}
		if st.Size <= offset {
			return nil
		}
		fd, err := openFile(dir, path)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Ftruncate(fd, offset)
	})
}

// eachFrom calls do for a stream's files from this index on, in ascending order. What is no log file is left out.
func eachFrom(
	allocDir, name string, index int64, do func(dir int, st *unix.Stat_t, path string, i int64) error,
) error {
	dir, err := openLogDir(allocDir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	known, err := list(dir, name)
	if err != nil {
		return fmt.Errorf("failed to list log directory: %w", err)
	}
	for _, i := range known {
		var st unix.Stat_t
		path := fileName(name, i)
		if i < index || unix.Fstatat(dir, path, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || checkFile(&st) != nil {
			continue
		}
		if err := do(dir, &st, path, i); err != nil {
			return fmt.Errorf("failed to change log file %s: %w", path, err)
		}
	}
	return nil
}
