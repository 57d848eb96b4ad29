// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"runtime/debug"
	"sync"
)

// flow measures the rate of a pump's output, and raises the garbage collector's percentage while it is fast. Each
// packet becomes garbage when it has gone through the connection. A plugin keeps its heap small by a low percentage
// (package plugin), with which the collector would need more processor time than a fast stream itself.
type flow struct {
	bytes int // since the last tick
	fast  bool
}

// fastFlow is the number of bytes a tick from which a flow is fast.
const fastFlow = 8 << 20

// add counts bytes.
func (f *flow) add(n int) {
	if f.bytes += n; f.bytes >= fastFlow && !f.fast {
		f.fast = true
		fast.add(1)
	}
}

// tick is called once a second (markEvery) after bytes were added, until it returns false.
func (f *flow) tick() (again bool) {
	if f.bytes < fastFlow {
		f.end()
	}
	f.bytes = 0
	return f.fast
}

func (f *flow) end() {
	if f.fast {
		f.fast = false
		fast.add(-1)
	}
}

// fastFlows is how many there are now.
type fastFlows struct {
	mu    sync.Mutex
	n     int
	usual int // the collector's percentage while there are none
}

var fast fastFlows

// fastPercent is the collector's percentage while there are any.
const fastPercent = 400

func (f *fastFlows) add(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.n
	switch f.n += n; {
	case was == 0:
		f.usual = debug.SetGCPercent(fastPercent)
	case f.n == 0:
		debug.SetGCPercent(f.usual)
	}
}
