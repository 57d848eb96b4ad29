// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"errors"
	"time"
)

// lag finds out whether a request that follows has fallen behind. Docker reads the file of the log that it has open to
// its end then, and goes on with the newest one: files between these are left out, and nobody is told. A request
// that does not follow has all files open from its beginning.
type lag struct {
	begun time.Time
	clock int64 // what the engine's clock showed then, or up to a second less
	file  int64 // the size of a file, 0 where that does not matter

	total int64 // bytes that were seen

	// the rate that they were written at, over a second at most
	since int64 // by the engine's clock
	bytes int64
}

// leastLag is what a request may be behind in any case: it takes some time to arrive.
const leastLag = 20 * time.Millisecond

// perEntry is about what an entry of a log has besides the frame.
const perEntry = 50

var errBehind = errors.New("it is too far behind")

// recent reports whether pieces were written shortly before the request.
func (g *lag) recent() bool { return g.clock-g.since < int64(2*time.Second) }

// sees is told of the next piece. It reports whether as much as half a file was written since, if that went on
// at the same rate.
func (g *lag) sees(at int64, size int) (behind bool) { return g.seesAt(at, size, time.Now()) }

func (g *lag) seesAt(at int64, size int, now time.Time) (behind bool) {
	g.total += int64(size) + perEntry
	late := g.clock + int64(now.Sub(g.begun)) - at
	if late < 0 {
		g.clock, late = g.clock-late, 0
	}
	if at < g.since || at-g.since > int64(time.Second) {
		g.since, g.bytes = at, 0
	}
	g.bytes += int64(size) + perEntry
	return g.file > 0 && late > int64(leastLag) && g.bytes > g.file/16 &&
		float64(late)*float64(g.bytes) > float64(at-g.since)*float64(g.file/2)
}
