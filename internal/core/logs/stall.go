// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"fmt"
	"strings"
	"time"
)

// If a log file cannot be written, usually because the disk is full, the output stays in the FIFO, and a full FIFO
// blocks the task. The write is retried at intervals of retryEvery. After the grace period the output is dropped, since
// a gap in the log is better than a task that hangs indefinitely. All dropped bytes are counted.
const (
	retryEvery = time.Second
	graceTime  = 10 * time.Second
	quietFor   = time.Minute
)

type stall struct {
	label string // "stdout"
	grace time.Duration

	since   time.Time // zero: not stalled
	retry   time.Time // when to write again
	drops   bool
	dropped int64

	reported bool      // an event was sent about the present wait
	quiet    time.Time // until this time, short waits cause no events
	events   []string
}

func (s *stall) report(format string, args ...any) {
	s.events = append(s.events, s.label+" "+fmt.Sprintf(format, args...))
}

// take returns the events since the last call.
func (s *stall) take() []string {
	e := s.events
	s.events = nil
	return e
}

func (s *stall) stalled() bool { return !s.since.IsZero() }

// waits reports whether to wait until s.retry.
func (s *stall) waits(now time.Time) bool { return s.stalled() && !s.drops && now.Before(s.retry) }

// failed records that a write failed.
func (s *stall) failed(now time.Time, err error) {
	if !s.stalled() {
		s.since = now
		if s.reported = now.After(s.quiet); s.reported {
			s.report("waits: %v", err)
		}
	}
	end := s.since.Add(s.grace)
	if !s.drops && !now.Before(end) {
		s.drops = true
		s.reported = true
		s.report("is dropped: %v for %v", err, s.grace)
	}
	s.retry = now.Add(retryEvery)
	if !s.drops && s.retry.After(end) {
		s.retry = end
	}
}

// succeeded records that all queued bytes have been written.
func (s *stall) succeeded(now time.Time) {
	if !s.stalled() {
		return
	}
	switch {
	case s.dropped > 0:
		s.report("resumed: dropped %d bytes", s.dropped)
	case s.reported:
		s.report("resumed")
	}
	s.quiet = now.Add(quietFor)
	s.since, s.retry, s.drops, s.reported, s.dropped = time.Time{}, time.Time{}, false, false, 0
}

// ended records that there will be no more output.
func (s *stall) ended() {
	if s.dropped > 0 {
		s.report("ended: dropped %d bytes", s.dropped)
	}
	s.dropped = 0
}

// label returns the stream's name for users: "stdout" for "web.stdout".
func label(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }
