// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// source is where a pump's output comes from, and where its marks are stored.
type source struct {
	// Read is Endpoint.Logs.
	Read func(ctx context.Context, stream string, from endpoint.Place, skip int64) (endpoint.LogReader, error)

	// Store stores marks in the object's record. ErrEpoch ends the pump.
	Store func(ctx context.Context, marks map[string]endpoint.LogMark) error

	// Event is for sentences among the task's events.
	Event func(format string, args ...any)
}

// The times of a pump.
const (
	markEvery  = time.Second     // between two marks, while output flows
	storeTime  = 5 * time.Second // to store one
	retryFirst = 100 * time.Millisecond
	retryLast  = 5 * time.Second // between two tries to reach the endpoint
	closeTime  = 5 * time.Second // for a write to a disk that hangs
	gapQuiet   = time.Minute     // between two events about gaps

	// holdTime is how long a write, such as to a full disk, may take until the reader is closed. What a reader has
	// buffered counts for its connection: a few dozen readers that nobody reads from block all other calls.
	holdTime = 2 * time.Second
)

// pump copies an object's output to the files of its owner's allocation, each byte once. The mark of
// a stream is a place in the endpoint's output with the matching place in the files. Only stored marks
// outlive the plugin, and so:
//   - the first mark is stored before the first byte is written,
//   - files behind a stored mark are not rotated away, so that after a restart of the plugin the same
//     allocation counts the bytes it has behind the mark, and skips as many of the output,
//   - what a node has behind its last stored mark when another one takes over is removed (output.yield).
//
// While nothing comes a stream is a goroutine in LogReader.Next, and has no buffer.
type pump struct {
	output
	source
	ctx     context.Context
	cancel  context.CancelFunc
	streams []*stream // stdout and stderr

	// storing is a lock that is held during Store. It is a channel, since testing/synctest does not count a wait for
	// a Mutex as durably blocked.
	storing chan struct{}

	mu     sync.Mutex
	timer  *time.Timer // that stores marks, nil if none is set
	flow   flow
	closed bool
}

// stream is stdout or stderr of a pump.
type stream struct {
	*pump
	name  string
	ended chan struct{} // closed when everything of an object that has ended is copied
	done  chan struct{} // closed when its goroutine has ended

	err     error // why the last try to copy failed, under pump.mu
	skip    int64 // bytes behind the mark that the files have already, until the first chunk
	midLine bool  // the last byte was no line's end
	quiet   time.Time

	mark   endpoint.LogMark // how far it is; with the next under pump.mu
	stored endpoint.LogMark // the last one that the endpoint certainly has, Alloc is another's if it has none
}

// newPump copies from the marks on that the record has. It returns at once: while the endpoint can't
// be reached it tries again.
func newPump(ctx context.Context, o output, from source, marks map[string]endpoint.LogMark) *pump {
	p := &pump{output: o, source: from, storing: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(ctx)
	for _, name := range []string{"stdout", "stderr"} {
		m := marks[name]
		p.streams = append(p.streams, &stream{
			pump: p, name: name, ended: make(chan struct{}), done: make(chan struct{}), mark: m, stored: m,
		})
	}
	for _, s := range p.streams {
		go s.run()
	}
	return p
}

// Drain returns when all output of an object that has ended is copied and the marks are stored. It
// returns ctx's error if that ends first.
func (p *pump) Drain(ctx context.Context) error {
	for _, s := range p.streams {
		select {
		case <-s.ended:
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			return errors.Join(s.err, ctx.Err())
		}
	}
	return p.store(ctx)
}

// GiveUp is Close before the object is given up: the files end at the marks then.
func (p *pump) GiveUp() map[string]endpoint.LogMark {
	marks := p.Close()
	for _, s := range p.streams {
		select {
		case <-s.done:
		default:
			continue // its disk hangs
		}
		if s.skip > 0 { // recovered, and nothing came since
			if err := s.cutAt(marks[s.name].Local); err != nil {
				s.Event("%s may have lines twice: %v", s.name, err)
			}
		}
	}
	return marks
}

// Close ends the copying and returns how far it came. Nothing is stored after it.
func (p *pump) Close() map[string]endpoint.LogMark {
	p.cancel()
	late, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	for _, s := range p.streams {
		select {
		case <-s.done:
		case <-late.Done(): // it ends when its disk answers
		}
	}
	p.storing <- struct{}{} // a call under way would overwrite what the caller stores next
	defer func() { <-p.storing }()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.flow.end()
	if p.timer != nil {
		p.timer.Stop()
	}
	return p.marks()
}

// marks are those of streams that have been copied from. The caller holds mu.
func (p *pump) marks() map[string]endpoint.LogMark {
	marks := map[string]endpoint.LogMark{}
	for _, s := range p.streams {
		if s.mark.Alloc == p.Alloc {
			marks[s.name] = s.mark
		}
	}
	return marks
}

// store stores the marks that have moved.
func (p *pump) store(ctx context.Context) error {
	p.storing <- struct{}{}
	defer func() { <-p.storing }()
	p.mu.Lock()
	marks, closed := p.marks(), p.closed
	for _, s := range p.streams {
		if s.mark == s.stored {
			delete(marks, s.name)
		}
	}
	p.mu.Unlock()
	if closed || len(marks) == 0 {
		return nil
	}
	// its outcome shall be known: Close waits for it
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	err := p.Store(ctx, marks)
	if errors.Is(err, endpoint.ErrEpoch) {
		p.cancel() // what follows is another owner's
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.streams {
		if m, ok := marks[s.name]; ok {
			s.stored = m
		}
	}
	return nil
}

// storeSoon stores the marks within markEvery. The caller holds mu.
func (p *pump) storeSoon() {
	if p.timer != nil || p.closed {
		return
	}
	p.timer = time.AfterFunc(markEvery, func() {
		p.mu.Lock()
		p.timer = nil
		if p.flow.tick() {
			p.storeSoon()
		}
		p.mu.Unlock()
		if p.ctx.Err() == nil && p.store(p.ctx) != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.storeSoon()
		}
	})
}

// storeNow stores the marks, however long that takes: the endpoint may be away.
func (p *pump) storeNow() error {
	for pause := retryFirst; ; pause = min(2*pause, retryLast) {
		if p.store(p.ctx) == nil {
			return nil
		}
		if err := sleep(p.ctx, pause); err != nil {
			return err
		}
	}
}

// run copies until the object has ended, or the pump has.
func (s *stream) run() {
	defer close(s.done)
	w, err := s.open()
	if w == nil {
		s.Event("%s is not copied: %v", s.name, err)
		close(s.ended)
		return
	}
	defer w.Close()
	begun, told := time.Now(), false // since when nothing could be copied
	for pause := retryFirst; ; pause = min(2*pause, retryLast) {
		was, tried := s.place(), time.Now()
		err := s.copy(w)
		if errors.Is(err, io.EOF) || errors.Is(err, endpoint.ErrGone) {
			close(s.ended)
			return
		}
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		if s.place() != was {
			pause = retryFirst
		}
		if s.place() != was || time.Since(tried) > copyPatience { // it waited for output
			begun, told = time.Now(), false
		}
		if sleep(s.ctx, pause) != nil {
			return
		}
		if !told && time.Since(begun) > copyPatience && !errors.Is(err, endpoint.ErrUnreachable) {
			told = true // that the endpoint can't be reached is told by the task's watch
			s.Event("%s can't be copied: %v", s.name, err)
		}
	}
}

// copyPatience is how long output may fail to be copied before an event tells of it.
const copyPatience = time.Minute

// open opens the files at the place that the mark stands for.
func (s *stream) open() (*logs.Writer, error) {
	keep := int64(logs.KeepNone)
	if s.mark.Alloc == s.Alloc {
		keep = int64(s.mark.Local.File)
		n, err := s.behind(s.name, s.mark.Local)
		if err != nil {
			s.Event("%s may have lines twice: %v", s.name, err)
		}
		s.skip = n
	}
	w, err := logs.NewWriter(logs.Config{
		AllocDir: s.AllocDir, Name: s.output.name(s.name), MaxFiles: s.MaxFiles, MaxFileSize: s.MaxSize,
	}, keep)
	if w == nil || s.mark.Alloc == s.Alloc {
		return w, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mark.Alloc != "" {
		before := s.mark
		before.Before = nil
		s.mark.Before = &before
	}
	s.mark.Alloc, s.mark.Local = s.Alloc, endOf(w)
	return w, err // which the first write meets again, and tells
}

func endOf(w *logs.Writer) task.LogPlace {
	index, size := w.End()
	return task.LogPlace{File: int(index), Offset: size}
}

// cutAt removes what the files have behind a place.
func (s *stream) cutAt(at task.LogPlace) error {
	return logs.Truncate(s.AllocDir, s.output.name(s.name), int64(at.File), at.Offset)
}

func (s *stream) place() endpoint.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mark.Place
}

// copy copies until the connection breaks (or the end of the output: io.EOF).
func (s *stream) copy(w *logs.Writer) error {
	r, err := s.Read(s.ctx, s.name, s.place(), s.skip)
	if err != nil {
		return err
	}
	defer r.Close()
	held := time.AfterFunc(holdTime, func() { _ = r.Close() })
	defer held.Stop()
	for {
		held.Stop()
		c, err := r.Next()
		if err != nil {
			return err
		}
		held.Reset(holdTime)
		if err := s.write(w, c); err != nil {
			return err
		}
		if !held.Stop() {
			return errHeld
		}
	}
}

var errHeld = errors.New("the files took too long")

// missing is the line in the place of output that is gone.
const missing = "[output is missing here: the endpoint had removed it before it was copied]\n"

// write writes a chunk whole, or leaves the files and the mark as they were.
func (s *stream) write(w *logs.Writer, c endpoint.Chunk) error {
	if err := s.room(w); err != nil {
		return err
	}
	data := c.Data
	if c.Gap {
		line := missing
		if s.midLine {
			line = "\n" + line
		}
		data = append([]byte(line), data...)
		if now := time.Now(); now.After(s.quiet) {
			s.quiet = now.Add(gapQuiet)
			s.Event("%s has a gap: the endpoint removed output before it was copied (logs { max_files, max_file_size } "+
				"is how much it keeps)", s.name)
		}
	}
	n, err := w.Write(s.ctx, data, func(event string) { s.Event("%s", event) })
	if err != nil {
		if n > 0 {
			s.mu.Lock()
			at := s.mark.Local
			s.mu.Unlock()
			err = errors.Join(err, s.cutAt(at))
		}
		return err
	}
	s.skip = 0
	if len(data) > 0 {
		s.midLine = data[len(data)-1] != '\n'
	}
	s.mu.Lock()
	s.mark.Place, s.mark.Local = c.End, endOf(w)
	if !s.closed {
		s.flow.add(len(data))
	}
	s.storeSoon()
	s.mu.Unlock()
	if c.Gap { // the line is none of the endpoint's: it must not be counted as such
		return s.storeNow()
	}
	return nil
}

// room makes sure that the endpoint has a mark of this allocation, and that not many more files than
// shall be kept are there because the last stored mark is far behind.
func (s *stream) room(w *logs.Writer) error {
	for {
		s.mu.Lock()
		stored, moved := s.stored, s.stored != s.mark
		s.mu.Unlock()
		if stored.Alloc == s.Alloc && (w.Keep(int64(stored.Local.File)) <= 0 || !moved) {
			return nil
		}
		if err := s.storeNow(); err != nil {
			return err
		}
	}
}
