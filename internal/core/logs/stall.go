// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"fmt"
	"strings"
	"time"
)

// What happens when a log file can't be written to, most often since the disk is
// full: the output waits in the FIFO, which makes the task wait once that is
// full; each retryEvery it is tried again; and after a grace it is dropped, since
// a task that hangs indefinitely is worse than a gap in its log. Every byte dropped
// is counted.
const (
	retryEvery   = time.Second
	defaultGrace = 10 * time.Second
	quietFor     = time.Minute
)

type stall struct {
	label string // "stdout"
	grace time.Duration

	since   time.Time // zero: all is well
	retry   time.Time // when to write again
	drops   bool
	dropped int64

	reported bool      // an event has said that it waits
	quiet    time.Time // until then another short wait is not worth an event
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

// waits reports whether nothing is to be done before s.retry.
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
		s.report("is dropped from now on: %v for %v", err, s.grace)
	}
	s.retry = now.Add(retryEvery)
	if !s.drops && s.retry.After(end) {
		s.retry = end
	}
}

// succeeded records that everything queued has been written.
func (s *stall) succeeded(now time.Time) {
	if !s.stalled() {
		return
	}
	switch {
	case s.dropped > 0:
		s.report("goes on: dropped %d bytes", s.dropped)
	case s.reported:
		s.report("goes on")
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

// label is the part of a file's name that a user knows it by: "stdout" of "web.stdout".
func label(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }
