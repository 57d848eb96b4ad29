// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// follow reads the log of a container for the readers of its streams, one each. An engine has both streams in one file,
// and decodes all of it for each request, which is most of what output costs. So they share one. When one joins or
// leaves, the request ends, and another one begins at the place of the one that is behind; the other one drops what it
// has.
type follow struct {
	e  *Endpoint
	id string

	// under e.mu
	readers [2]*logReader      // by stream
	stop    context.CancelFunc // ends the request

	// of run
	behind bool // the next request does not follow
	idle   int  // requests in turn that followed, and ended with nothing
}

// The pauses between requests that should follow a container that runs, and end. That is so before Docker has started
// it, and where Docker can't read an entry of its log.
const (
	firstPause = 100 * time.Millisecond
	mostIdle   = 6 // each pause is twice the one before; then it is an error
)

// apart is how far apart readers may be that share a request: what is between them is sent again to the one ahead. One
// that has read for days, and one that goes on at the beginning since nothing came yet, have requests of their own.
const apart = time.Minute

// join finds a request for a reader. One that is closed gets none.
func (l *logReader) join() {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	l.chunks = make(chan *endpoint.Chunk, 1)
	for _, f := range l.e.follows[l.id] {
		other := f.readers[1-l.stream]
		if f.readers[l.stream] != nil || time.Duration(l.at.Load()-other.at.Load()).Abs() > apart {
			continue
		}
		l.follow, f.readers[l.stream] = f, l
		f.stop()
		return
	}
	l.follow = &follow{e: l.e, id: l.id, stop: func() {}}
	l.follow.readers[l.stream] = l
	l.e.follows[l.id] = append(l.e.follows[l.id], l.follow)
	go l.follow.run()
}

// leave ends the request of a reader that is closed. Another one follows for the other reader, if there is one.
func (l *logReader) leave() {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	f := l.follow
	if f == nil || f.readers[l.stream] != l {
		return
	}
	if f.readers[l.stream] = nil; f.readers[1-l.stream] == nil {
		f.forget()
	}
	f.stop()
}

// forget makes sure that nobody joins any more. The caller holds e.mu.
func (f *follow) forget() {
	all := slices.DeleteFunc(f.e.follows[f.id], func(o *follow) bool { return o == f })
	if f.e.follows[f.id] = all; len(all) == 0 {
		delete(f.e.follows, f.id)
	}
}

// run makes requests until there is an error, all is read, or both readers are closed.
func (f *follow) run() {
	for {
		f.e.mu.Lock()
		readers := f.readers
		ctx, stop := context.WithCancel(context.Background())
		f.stop = stop
		f.e.mu.Unlock()
		if readers[0] == nil && readers[1] == nil {
			stop()
			return
		}
		err := f.request(ctx, readers)
		over := f.over(ctx, err)
		stop()
		if over {
			return
		}
	}
}

// over ends it with an error of a request, unless a reader has joined meanwhile. The readers may begin again with
// another one then.
func (f *follow) over(ctx context.Context, err error) bool {
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	if err == nil || ctx.Err() != nil {
		return false
	}
	for i, l := range f.readers {
		if l != nil {
			l.err, f.readers[i] = err, nil
			close(l.chunks)
		}
	}
	f.forget()
	return true
}

// request reads the log from the places on: as it grows while the container runs, and then once more, which ends with
// io.EOF. What it has read is in the readers' places, so another one may follow an error at any point. One that has
// fallen behind is followed by ones that do not follow (lag).
func (f *follow) request(ctx context.Context, readers [2]*logReader) error {
	b, err := f.e.box(ctx, f.id)
	if err != nil {
		if failed := failed("look at the container", err); unreached(failed) {
			return failed
		}
		return endpoint.ErrGone
	}
	live := b.running() || !b.ran()
	if live && f.idle > 0 {
		if f.idle > mostIdle && b.running() {
			return failed("read the log", errEnds)
		}
		select {
		case <-time.After(firstPause << (min(f.idle, mostIdle) - 1)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	o := client.ContainerLogsOptions{
		ShowStdout: readers[0] != nil, ShowStderr: readers[1] != nil, Timestamps: true, Follow: live && !f.behind,
	}
	since := int64(-1)
	for _, l := range readers {
		if l == nil {
			continue
		}
		l.begin()
		if since < 0 || l.place.File < since {
			since = l.place.File
		}
	}
	if podman := f.e.clock.podman.Load(); podman && since > 1e9 {
		o.Since = fmt.Sprint(since/1e9 - 1) // it reads a fraction as a float64, and leaves out what has this very time
	} else if !podman && since > 0 {
		o.Since = fmt.Sprintf("%d.%09d", since/1e9, since%1e9)
	}
	g, were := &lag{begun: time.Now(), clock: f.e.clock.now().UnixNano()}, places(readers)
	if o.Follow {
		g.file = b.logFile
	}
	body, err := f.e.api.ContainerLogs(ctx, f.id, o)
	if err != nil {
		return failed("read the log", err)
	}
	defer body.Close()
	err = share(body, readers, g)
	switch {
	case errors.Is(err, errBehind):
		f.behind = true
	case !errors.Is(err, io.EOF):
		return failed("read the log", err)
	case !live: // what was there when it began is all
		return io.EOF
	case f.behind:
		f.behind = g.total > b.logFile/2 && g.recent() // as much may have come meanwhile
	case places(readers) == were:
		f.idle++
		return nil
	}
	f.idle = 0
	return nil
}

func places(readers [2]*logReader) (all [2]endpoint.Place) {
	for i, l := range readers {
		if l != nil {
			all[i] = l.place
		}
	}
	return all
}

var errEnds = errors.New("the engine ends it while the container runs, maybe at an entry that it can't read")

// share gives the pieces of a log to their readers until there is an error. It waits for one that does not read.
func share(body io.Reader, readers [2]*logReader, g *lag) error {
	in := frames{body: body}
	defer in.idle()
	give := func() {
		for _, l := range readers {
			if l != nil {
				l.give()
			}
		}
	}
	defer give()
	for {
		if !in.more() {
			give()
			in.idle()
		}
		stream, frame, err := in.next()
		if err != nil {
			return err
		}
		if stream != 1 && stream != 2 {
			return ofEngine(stream, frame)
		}
		l, other := readers[stream-1], readers[2-stream]
		if l == nil || l.ctx.Err() != nil {
			continue
		}
		at, data, err := piece(frame)
		if err != nil {
			return err
		}
		if g.sees(at, len(frame)) {
			return errBehind
		}
		if l.take(at, data); l.full() {
			give() // that of the other one is not to wait for as much
		}
		if other != nil {
			other.pass(at)
		}
	}
}
