package logs

import (
	"fmt"
	"strings"
	"time"
)

// What happens when a log file can't be written to, most often since the disk is
// full: the output waits in the FIFO, which makes the task wait once that is
// full; each retryEvery it is tried again; and after a grace it is dropped, since
// a task that hangs for ever is worse than a gap in its log. Every byte dropped
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

	told   bool      // the user knows that it waits
	quiet  time.Time // until then another short wait is not worth telling
	events []string
}

func (s *stall) tell(format string, args ...any) {
	s.events = append(s.events, s.label+" "+fmt.Sprintf(format, args...))
}

// take returns what there is to tell.
func (s *stall) take() []string {
	e := s.events
	s.events = nil
	return e
}

func (s *stall) stalled() bool { return !s.since.IsZero() }

// waits says that nothing is to be done before s.retry.
func (s *stall) waits(now time.Time) bool { return s.stalled() && !s.drops && now.Before(s.retry) }

// failed notes that a write failed.
func (s *stall) failed(now time.Time, err error) {
	if !s.stalled() {
		s.since = now
		if s.told = now.After(s.quiet); s.told {
			s.tell("waits: %v", err)
		}
	}
	end := s.since.Add(s.grace)
	if !s.drops && !now.Before(end) {
		s.drops = true
		s.told = true
		s.tell("is dropped from now on: %v for %v", err, s.grace)
	}
	s.retry = now.Add(retryEvery)
	if !s.drops && s.retry.After(end) {
		s.retry = end
	}
}

// succeeded notes that all there was has been written.
func (s *stall) succeeded(now time.Time) {
	if !s.stalled() {
		return
	}
	switch {
	case s.dropped > 0:
		s.tell("goes on: dropped %d bytes", s.dropped)
	case s.told:
		s.tell("goes on")
	}
	s.quiet = now.Add(quietFor)
	s.since, s.retry, s.drops, s.told, s.dropped = time.Time{}, time.Time{}, false, false, 0
}

// ended notes that there will be no more.
func (s *stall) ended() {
	if s.dropped > 0 {
		s.tell("ended: dropped %d bytes", s.dropped)
	}
	s.dropped = 0
}

// label is the part of a file's name that a user knows it by: "stdout" of "web.stdout".
func label(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }
