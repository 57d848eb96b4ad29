// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// A Place is the time that the engine gives to a piece of output, and how many bytes with that time came before. Docker
// tells nanoseconds, Podman seconds. Pieces with an older time than the newest before them, which there are when
// the engine's clock is set back, do not move the place.

// logReader reads a stream piece by piece, by a request that it may share: see follow.
type logReader struct {
	e      *Endpoint
	ctx    context.Context
	cancel context.CancelFunc
	id     string
	stream int // in streams

	follow *follow              // under e.mu; nil: none has it, or had it
	chunks chan *endpoint.Chunk // from follow; nil: the next read joins one
	err    error                // why chunks was closed
	out    *endpoint.Chunk      // what was returned last
	at     atomic.Int64         // about where it is, as a time: that of the place, or of the container's start

	// while it is joined these are follow's
	place endpoint.Place
	skip  int64
	again int64           // bytes of the place's time that come again
	first bool            // no piece from the place on was read in this request
	gap   bool            // in front of what is next
	next  *endpoint.Chunk // nil while there is nothing
}

var streams = []string{"stdout", "stderr"}

var chunks = sync.Pool{New: func() any { return &endpoint.Chunk{Data: make([]byte, 0, chunkSize)} }}

// Logs is part of endpoint.Endpoint. Nothing is asked for before the first Next.
func (e *Endpoint) Logs(
	ctx context.Context, name, stream string, from endpoint.Place, skip int64,
) (endpoint.LogReader, error) {
	number := slices.Index(streams, stream)
	if number < 0 {
		return nil, fmt.Errorf("%q is no stream of output", stream)
	}
	v, err := e.look(ctx, name)
	if err != nil {
		return nil, err
	}
	if v.top == nil || v.box == nil {
		return nil, endpoint.ErrGone
	}
	l := &logReader{e: e, id: v.box.id, stream: number, place: from, skip: skip}
	if l.at.Store(from.File); from.File == 0 && v.box.ran() {
		l.at.Store(stamp(v.box.state.StartedAt).UnixNano())
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	context.AfterFunc(l.ctx, l.leave)
	return l, nil
}

// Close is part of endpoint.LogReader.
func (l *logReader) Close() error {
	l.cancel()
	return nil
}

// Next is part of endpoint.LogReader.
func (l *logReader) Next() (endpoint.Chunk, error) {
	if l.out != nil && cap(l.out.Data) <= maxKept {
		l.out.Data = l.out.Data[:0]
		chunks.Put(l.out)
	}
	l.out = nil
	if err := l.ctx.Err(); err != nil {
		return endpoint.Chunk{}, failed("read the log", err)
	}
	if l.chunks == nil {
		l.join()
	}
	select {
	case c, ok := <-l.chunks:
		if !ok {
			l.chunks = nil
			return endpoint.Chunk{}, l.err
		}
		l.out = c
		return *c, nil
	case <-l.ctx.Done():
		return endpoint.Chunk{}, failed("read the log", l.ctx.Err())
	}
}

// begin is told that a request begins with what is at the place, or before.
func (l *logReader) begin() { l.again, l.first = l.place.Offset, true }

// take takes the next piece of its stream. Up to its place that may be what it has, since the other reader was behind.
func (l *logReader) take(at int64, data []byte) {
	if l.first && at < l.place.File {
		return
	}
	if l.first && l.again > 0 && at > l.place.File {
		l.gap = true // what was read before is not there any more, nor perhaps what followed
	}
	l.first = false
	switch {
	case at > l.place.File:
		l.place, l.again = endpoint.Place{File: at, Offset: int64(len(data))}, 0
	case at < l.place.File:
	default:
		n := min(l.again, int64(len(data)))
		l.again -= n
		data = data[n:]
		l.place.Offset += int64(len(data))
	}
	n := min(l.skip, int64(len(data)))
	l.skip -= n
	if data = data[n:]; len(data) == 0 {
		return
	}
	if l.next == nil {
		l.next = chunks.Get().(*endpoint.Chunk)
	}
	l.next.Data = append(l.next.Data, data...)
}

// The place of a silent reader follows the other one at a distance: else they would be apart after a restart of the
// plugin, and the engine would have to read all of the log again for it.
const (
	mostBehind   = apart / 2        // before it follows
	silentBehind = 10 * time.Second // behind the other one: pieces of two streams may be out of order
)

// pass is told that the other stream has come to a time.
func (l *logReader) pass(at int64) {
	if at-l.at.Load() < int64(mostBehind) || l.skip > 0 || l.ctx.Err() != nil {
		return
	}
	if place := (endpoint.Place{File: at - int64(silentBehind)}); place.File > l.place.File {
		l.gap = l.gap || l.first && l.again > 0 // as in take
		l.place, l.again, l.first = place, 0, false
		if l.next == nil {
			l.next = chunks.Get().(*endpoint.Chunk)
		}
	}
}

// full reports whether there is enough for a chunk.
func (l *logReader) full() bool { return l.next != nil && len(l.next.Data) >= chunkSize }

// give waits until the reader has read the chunk before, or is closed.
func (l *logReader) give() {
	if l.next == nil {
		return
	}
	l.next.End, l.next.Gap, l.gap = l.place, l.gap, false
	l.at.Store(l.place.File)
	select {
	case l.chunks <- l.next:
	case <-l.ctx.Done():
	}
	l.next = nil
}
