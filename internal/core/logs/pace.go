// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import "time"

// A stream is emptied when enoughQueued bytes are queued, or some time after the first byte. Without this wait, a
// program that writes line by line would cost one splice(2) per line, and eight times the CPU time (BenchmarkPump).
//
// The wait adapts to the amount of output. It becomes longer as long as a program writes little. It becomes the
// shortest when enoughQueued bytes are queued, because the program blocks once the pipe is full (64 KiB).
//
// A program that does fill the pipe gets a larger pipe: even the shortest wait limits it to one pipe capacity per
// millisecond, the resolution of epoll_wait(2).
const (
	enoughQueued = 32 << 10
	nearlyFull   = 60 << 10
	widePipe     = 1 << 20 // the default limit of pipe(7) for unprivileged users
	shortestWait = 500 * time.Microsecond
	longestWait  = 8 * time.Millisecond
)

type pace struct {
	wait time.Duration // the current wait; 0 means shortestWait
	due  time.Time     // zero: no bytes are waiting
}

// epoch is the time from which rounded deadlines are counted. It has a monotonic clock reading, so setting the system's
// clock does not affect it.
var epoch = time.Now()

// later reports whether the queued bytes should wait, and until when.
func (p *pace) later(now time.Time, queued int) (time.Time, bool) {
	p.wait = max(p.wait, shortestWait)
	switch {
	case queued >= enoughQueued:
		p.wait = shortestWait
	case p.due.IsZero():
		// rounded, so the streams of many tasks wake the loop together
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
