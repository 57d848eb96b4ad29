// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import "time"

// A stream is emptied when enoughQueued bytes wait, or some time after the first:
// a program that writes line by line would otherwise cost a splice(2) a line, at
// eight times the processor time (BenchmarkPump).
//
// The time adapts to how much comes. It is longest for a program that writes
// little, for which nothing is lost by waiting; a program that could fill the pipe
// (64 KiB, and then it blocks) within that time makes it short, after once.
//
// A program that does fill the pipe gets a wide one, since the shortest time limits
// it to a pipe's worth a millisecond, which is as fine as epoll_wait(2) sleeps.
const (
	enoughQueued = 32 << 10
	nearlyFull   = 60 << 10
	widePipe     = 1 << 20 // what pipe(7) allows an unprivileged user by default
	shortestWait = 500 * time.Microsecond
	longestWait  = 8 * time.Millisecond
)

type pace struct {
	wait time.Duration // the present one; 0 is shortestWait
	due  time.Time     // zero: nothing waits
}

// epoch is what deadlines are rounded against: on the monotonic clock, which
// is never set back.
var epoch = time.Now()

// later reports whether queued bytes wait, and until when.
func (p *pace) later(now time.Time, queued int) (time.Time, bool) {
	p.wait = max(p.wait, shortestWait)
	switch {
	case queued >= enoughQueued:
		p.wait = shortestWait
	case p.due.IsZero():
		// rounded, so that the streams of many tasks wake the loop together
		p.due = epoch.Add((now.Sub(epoch) + p.wait + p.wait/2).Truncate(p.wait))
		return p.due, true
	case now.Before(p.due):
		return p.due, true
	case queued < enoughQueued/4:
		p.wait = min(2*p.wait, longestWait)
	}
	p.due = time.Time{}
	return time.Time{}, false
}
