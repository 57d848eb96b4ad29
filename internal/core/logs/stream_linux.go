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

// Next is what an event loop has to do about a stream.
type Next int

// What comes next.
const (
	Wait  Next = iota // call Pump when the FIFO is readable
	Later             // call again at Result.At, whether it is readable or not; do not watch it until then
	Ended             // nothing is queued and no writer is left
)

// Result is what a call did and what comes next.
type Result struct {
	Next Next
	At   time.Time // of Later
	N    int64     // bytes moved to files

	// Events are sentences for the user of the task, such as "stdout waits: no
	// space left on device".
	Events []string
}

// Stream moves one FIFO to its files. One goroutine may use it.
//
// A loop watches FD with EPOLLIN|EPOLLONESHOT: an answer Wait arms it again, Later
// sets a timer (otherwise a line-wise writer wakes the loop for each line),
// Ended removes it. Deadlines are below a millisecond: epoll_pwait2(2), a timerfd,
// or rounding up to 1 ms will do.
type Stream struct {
	limit int64
	fifo  int
	files files
	pace  pace
	stall stall

	eager    bool      // benchmarks: do not wait for more
	widened  bool      // the pipe was asked to hold widePipe
	noSplice bool      // the file system refuses splice(2)
	stuck    time.Time // no next file could be made; not tried again before
}

// Open makes the stream of a FIFO (OpenReadEnd), which is the stream's from then
// on if one is returned. It goes on at the end of the newest file there is.
//
// With an error that lies in the files (the log directory is missing, or is a
// symbolic link; no space for a new file) the stream is returned too. The start of
// a task may then fail, after Close; for one that runs already the stream does
// what it does when a disk is full: it retries, reports events, and drops the output in the end.
func Open(fifo int, cfg Config) (*Stream, error) {
	if !filepath.IsAbs(cfg.AllocDir) {
		return nil, fmt.Errorf("failed to open log: allocation directory %q is not absolute", cfg.AllocDir)
	}
	if cfg.Name == "" || strings.ContainsAny(cfg.Name, "/\x00") {
		return nil, fmt.Errorf("failed to open log: %q is no file name", cfg.Name)
	}
	if cfg.MaxFiles < 0 || cfg.MaxFileSize < 0 || cfg.Grace < 0 {
		return nil, errors.New("failed to open log: a limit is negative")
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
	s := &Stream{
		fifo:  fifo,
		limit: cfg.MaxFileSize,
		files: files{allocDir: cfg.AllocDir, name: cfg.Name, max: cfg.MaxFiles, dir: -1, file: -1},
		stall: stall{label: label(cfg.Name), grace: cfg.Grace},
	}
	return s, s.files.open()
}

// FD is what to watch.
func (s *Stream) FD() int { return s.fifo }

// Pump moves what is queued, once that is enough to be worth it. It moves no
// more than was there when it was called, so that no task keeps the loop to itself.
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
	if !s.eager {
		if at, later := s.pace.later(now, queued); later {
			return Result{Next: Later, At: at}
		}
	}
	if queued >= nearlyFull && !s.widened {
		s.widened = true
		// it may be refused, as beyond an unprivileged user's share (pipe(7)): the task waits more often then
		_, _ = unix.FcntlInt(uintptr(s.fifo), unix.F_SETPIPE_SZ, widePipe)
	}
	r := Result{N: s.step(now, queued), Next: Wait, Events: s.stall.take()}
	if s.stall.waits(now) {
		r.Next, r.At = Later, s.stall.retry
	}
	return r
}

// Drain moves what is queued, for a task whose processes are all gone. The answer
// is Ended when the FIFO is empty, though others may hold it open, or Later while
// the disk is full: then it is to be called again, or the stream to be closed and
// the rest lost.
func (s *Stream) Drain(now time.Time) Result {
	r := Result{Next: Ended}
	for range 64 { // a pipe's worth needs one; a writer that goes on does not keep us here
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

// Close closes all descriptors; the files stay, and so does what is still queued
// if another process has the FIFO open. It returns the last events.
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

// step moves n queued bytes to files, or drops them if that is the time for it.
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

// write moves n queued bytes to files. It stops at the first error, which is
// returned bare; all before it have been written, and none behind it taken.
func (s *Stream) write(now time.Time, n int) (moved int, err error) {
	if s.files.file < 0 {
		if err := s.files.open(); err != nil {
			return 0, cause(err)
		}
	}
	for moved < n {
		// each time, as O_APPEND would: the file may have been truncated or removed
		var st unix.Stat_t
		if err := unix.Fstat(s.files.file, &st); err != nil {
			return moved, err
		}
		if st.Nlink == 0 {
			if s.rotate(now) {
				continue
			}
			if st.Size >= s.limit { // it has no name to be read by, but it takes space
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
			s.rotate(now)
		}
	}
	return moved, nil
}

// rotate begins the next file. If that can't be made the old one goes on,
// beyond its size: better a big file than none.
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
		s.stall.report("goes on in %s: %v", s.files.path(s.files.index), err)
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
	if err != nil { // no descriptors left: then without regard for lines
		if size >= s.limit {
			return 0, true
		}
		return int(min(int64(n), s.limit-size)), false
	}
	return take, rotate
}

// move moves n queued bytes to the offset at of the file, and returns how many it moved.
func (s *Stream) move(n int, at int64) (int, error) {
	if !s.noSplice {
		k, err := retry(func() (int64, error) {
			off := at
			return unix.Splice(s.fifo, nil, s.files.file, &off, n, unix.SPLICE_F_NONBLOCK)
		})
		if err == nil && k == 0 {
			err = unix.EAGAIN // no writer is left, and no byte
		}
		if err != unix.EINVAL {
			return int(max(k, 0)), err
		}
		s.noSplice = true
	}
	return s.copy(n, at)
}

// copy is move for a file system without splice(2); every one in the kernel's
// tree that has ordinary files has it. The bytes are taken only after they were
// written: a kill between the two calls repeats them, none is lost.
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

// cause is the innermost error: what a user needs of "failed to …: open …: no space left on device".
func cause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) && (errno == unix.ENOSPC || errno == unix.EDQUOT) {
		return errno
	}
	return err
}

// Device is the number of the file system in which the log directory is, 0 before
// that was opened.
func (s *Stream) Device() uint64 { return s.files.device }
