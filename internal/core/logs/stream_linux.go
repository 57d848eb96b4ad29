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

// Config configures the destination of one output stream of a task.
type Config struct {
	// AllocDir is the allocation's directory, absolute.
	AllocDir string

	// Name is the file name without the index: <task>.stdout or <task>.stderr.
	Name string

	// MaxFiles is the number of files to keep; 0 means 10, as in Nomad.
	MaxFiles int

	// MaxFileSize is the size in bytes at which files are rotated; 0 means 10 MiB, as in Nomad. Files end at the end of a
	// line if possible (see cut).
	MaxFileSize int64
}

// Next tells an event loop when to call a stream again.
type Next int

// The values of Next.
const (
	Wait  Next = iota // call Pump when the FIFO is readable
	Later             // call again at Result.At, readable or not; do not watch the FIFO until then
	Ended             // the FIFO is empty; after Pump, this also means that no writer is left
)

// Result is the result of Pump or Drain.
type Result struct {
	Next Next
	At   time.Time // for Later
	N    int64     // bytes moved to files

	// Events are sentences for the user of the task, such as "stdout waits: no space left on device".
	Events []string
}

// Stream moves output from one FIFO to its files. Only one goroutine may use it.
//
// An event loop watches FD with EPOLLIN|EPOLLONESHOT. After Wait, the loop arms FD again. After Later, it sets a timer
// and leaves FD alone; otherwise each line that a program writes would wake the loop. After Ended, it removes FD.
// Deadlines can be less than a millisecond away: use epoll_pwait2(2), a timerfd, or round up to 1 ms.
type Stream struct {
	limit int64
	fifo  int
	files files
	pace  pace
	stall stall

	widened  bool      // widePipe was requested as the pipe's capacity
	noSplice bool      // the file system does not support splice(2)
	stuck    time.Time // the last rotation failed; do not retry before this time
}

// Open makes a stream for a FIFO that OpenReadEnd has opened. A returned stream owns the FIFO. It appends to the newest
// existing file.
//
// If the error is caused by the files (the log directory is missing or a symbolic link, or there is no space for a new
// file), Open returns both the stream and the error. A caller that starts a task may then close the stream and fail the
// start. For a running task, use the stream: as with a full disk, the stream retries, reports events, and finally drops
// the output.
func Open(fifo int, cfg Config) (*Stream, error) {
	if !filepath.IsAbs(cfg.AllocDir) {
		return nil, fmt.Errorf("failed to open log: allocation directory %q is not absolute", cfg.AllocDir)
	}
	if cfg.Name == "" || strings.ContainsAny(cfg.Name, "/\x00") {
		return nil, fmt.Errorf("failed to open log: %q is not a file name", cfg.Name)
	}
	if cfg.MaxFiles == 0 {
		cfg.MaxFiles = 10
	}
	if cfg.MaxFileSize == 0 {
		cfg.MaxFileSize = 10 << 20
	}
	s := &Stream{
		fifo:  fifo,
		limit: cfg.MaxFileSize,
		files: files{allocDir: cfg.AllocDir, name: cfg.Name, max: cfg.MaxFiles, dir: -1, file: -1},
		stall: stall{label: label(cfg.Name), grace: graceTime},
	}
	return s, s.files.open()
}

// FD returns the descriptor to watch.
func (s *Stream) FD() int { return s.fifo }

// Pump moves the queued bytes once enough are queued. It moves only bytes that were queued at the time of the call, so
// no task can monopolize the loop.
func (s *Stream) Pump(now time.Time) Result {
	if s.stall.waits(now) {
		return Result{Next: Later, At: s.stall.retry}
	}
	queued, err := Queued(s.fifo)
	if err != nil || queued == 0 {
		s.pace.due = time.Time{}
		if err != nil || hungUp(s.fifo) {
			return Result{Next: Ended}
		}
		return Result{Next: Wait}
	}
	if at, later := s.pace.later(now, queued); later {
		return Result{Next: Later, At: at}
	}
	if queued >= nearlyFull && !s.widened {
		s.widened = true
		// best effort: beyond an unprivileged user's limit (pipe(7)), the call fails, and the task blocks more often
		_, _ = unix.FcntlInt(uintptr(s.fifo), unix.F_SETPIPE_SZ, widePipe)
	}
	r := Result{N: s.step(now, queued), Next: Wait, Events: s.stall.take()}
	if s.stall.waits(now) {
		r.Next, r.At = Later, s.stall.retry
	}
	return r
}

// Drain moves the queued bytes of a task whose processes are all gone. Next is Ended when the FIFO is empty, even if
// other processes have it open. Next is Later while the disk is full: call Drain again, or close the stream and lose
// the rest.
func (s *Stream) Drain(now time.Time) Result {
	r := Result{Next: Ended}
	for range 64 { // one iteration moves a full pipe; the bound is for a writer that never stops
		queued, err := Queued(s.fifo)
		if err != nil || queued == 0 {
			s.stall.ended()
			r.Events = append(r.Events, s.stall.take()...)
			return r
		}
		if s.stall.waits(now) {
			r.Next, r.At = Later, s.stall.retry
			return r
		}
		r.N += s.step(now, queued)
		r.Events = append(r.Events, s.stall.take()...)
	}
	r.Next, r.At = Later, now
	return r
}

// Close closes all descriptors and returns the last events. The files stay. Queued bytes are lost unless another
// process has the FIFO open.
func (s *Stream) Close() (events []string) {
	s.stall.ended()
	if err := s.files.close(); err != nil {
		s.stall.report("may be incomplete: %v", err)
	}
	if s.fifo >= 0 {
		unix.Close(s.fifo)
	}
	s.fifo = -1
	return s.stall.take()
}

// step moves n queued bytes to files, or drops them after the grace period.
func (s *Stream) step(now time.Time, n int) (moved int64) {
	if !s.stall.drops || !now.Before(s.stall.retry) {
		k, err := s.write(now, n)
		moved, n = int64(k), n-k
		if err == nil {
			s.stall.succeeded(now)
			return moved
		}
		s.stall.failed(now, err)
	}
	if s.stall.drops {
		for n > 0 {
			k, err := discard(s.fifo, n)
			if err != nil || k == 0 {
				break
			}
			s.stall.dropped += int64(k)
			n -= k
		}
	}
	return moved
}

// write moves n queued bytes to files. It stops at the first error and returns it unwrapped. It removes only moved
// bytes from the FIFO.
func (s *Stream) write(now time.Time, n int) (moved int, err error) {
	if s.files.file < 0 {
		if err := s.files.open(); err != nil {
			return 0, cause(err)
		}
	}
	for moved < n {
		// find the end of the file before each move, as O_APPEND would: the file may have been truncated or removed
		var st unix.Stat_t
		if err := unix.Fstat(s.files.file, &st); err != nil {
			return moved, err
		}
		if st.Nlink == 0 {
			if s.rotate(now) {
				continue
			}
			if st.Size >= s.limit { // an unlinked file cannot be read, but uses space
				unix.Ftruncate(s.files.file, 0)
				st.Size = 0
			}
		}
		take, full := n-moved, false
		if st.Size+int64(take) > s.limit && now.After(s.stuck) {
			take, full = s.cut(take, st.Size)
		}
		if take > 0 {
			k, err := s.move(take, st.Size)
			moved += k
			if err == unix.EAGAIN { // another reader has taken the bytes
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
			s.rotate(now)
		}
	}
	return moved, nil
}

// rotate switches to the next file. If the next file cannot be made, output continues in the old file, beyond the
// limit.
func (s *Stream) rotate(now time.Time) bool {
	if !now.After(s.stuck) {
		return false
	}
	err := s.files.next()
	if err == nil {
		s.stuck = time.Time{}
		return true
	}
	if s.stuck.IsZero() {
		s.stall.report("is not rotated and continues in %s: %v", s.files.path(s.files.index), err)
	}
	s.stuck = now.Add(retryEvery)
	return false
}

// cut applies the function cut to the queued bytes.
func (s *Stream) cut(n int, size int64) (take int, rotate bool) {
	err := peek(s.fifo, n, func(p []byte) {
		midLine := false
		if size > 0 {
			var last [1]byte
			k, _ := retry(func() (int, error) { return unix.Pread(s.files.file, last[:], size-1) })
			midLine = k == 1 && last[0] != '\n'
		}
		take, rotate = cut(p, size, s.limit, midLine)
	})
	if err != nil { // for example, no descriptor is free: cut at the limit, even within a line
		if size >= s.limit {
			return 0, true
		}
		return int(min(int64(n), s.limit-size)), false
	}
	return take, rotate
}

// move moves up to n queued bytes to the file, at the offset at, and returns the number of moved bytes.
func (s *Stream) move(n int, at int64) (int, error) {
	if !s.noSplice {
		k, err := retry(func() (int64, error) {
			off := at
			return unix.Splice(s.fifo, nil, s.files.file, &off, n, unix.SPLICE_F_NONBLOCK)
		})
		if err == nil && k == 0 {
			err = unix.EAGAIN // no bytes and no writer are left
		}
		if err != unix.EINVAL {
			return int(max(k, 0)), err
		}
		s.noSplice = true
	}
	return s.copy(n, at)
}

// copy implements move for a file system without splice(2). (ext4, XFS, Btrfs, tmpfs and NFS have it.) It removes bytes
// from the FIFO only after it has written them to the file. After a kill in between, these bytes are written again, but
// none are lost.
func (s *Stream) copy(n int, at int64) (k int, err error) {
	perr := peek(s.fifo, n, func(p []byte) {
		k, err = retry(func() (int, error) { return unix.Pwrite(s.files.file, p, at) })
	})
	if perr != nil {
		return 0, perr
	}
	for taken := 0; taken < k; {
		m, derr := discard(s.fifo, k-taken)
		if derr != nil || m == 0 {
			break
		}
		taken += m
	}
	return max(k, 0), err
}

// cause reduces "failed to …: open …: no space left on device" to the part that a user needs.
func cause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) && (errno == unix.ENOSPC || errno == unix.EDQUOT) {
		return errno
	}
	return err
}

// Device returns st_dev of the log directory's file system, 0 before the directory was opened.
func (s *Stream) Device() uint64 { return s.files.device }
