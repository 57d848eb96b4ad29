// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	until "github.com/shoenig/test/wait"

	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// tape is the output of an object, with its record.
type tape struct {
	mu      sync.Mutex
	changed chan struct{} // closed at each change
	out     map[string][]byte
	removed int64 // bytes at the beginning of each stream that are gone
	over    bool
	record  endpoint.Record
	stored  int // calls that stored marks
}

func newTape() *tape {
	return &tape{changed: make(chan struct{}), out: map[string][]byte{}, record: endpoint.Record{
		Epoch: 1, Mutable: endpoint.Mutable{Logs: map[string]endpoint.LogMark{}},
	}}
}

func (t *tape) change(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *tape) print(stream, text string) {
	t.change(func() { t.out[stream] = append(t.out[stream], text...) })
}

func (t *tape) end() { t.change(func() { t.over = true }) }

// take is Endpoint.Take.
func (t *tape) take(alloc string) *endpoint.Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.record.Epoch++
	t.record.Owner.Alloc = alloc
	return t.read()
}

func (t *tape) read() *endpoint.Record {
	r := t.record
	r.Logs = maps.Clone(r.Logs)
	return &r
}

func (t *tape) get() *endpoint.Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read()
}

// The endpoint's files have 10,000 bytes, so that a place has two parts.
func placeAt(n int64) endpoint.Place { return endpoint.Place{File: n / 10000, Offset: n % 10000} }

// copying is a node where pumps run: it owns the object by an epoch, and has a link to it.
type copying struct {
	t      *testing.T
	tape   *tape
	epoch  uint64
	output output
	pump   *pump
	marks  map[string]endpoint.LogMark

	mu     sync.Mutex
	down   chan struct{} // closed while the link is down
	events []string
}

func newCopying(t *testing.T, tp *tape, alloc string) *copying {
	dir := filepath.Join(t.TempDir(), alloc)
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "alloc", "logs"), 0o777))
	r := tp.take(alloc)
	return &copying{
		t: t, tape: tp, epoch: r.Epoch, marks: r.Logs, down: make(chan struct{}),
		output: output{AllocDir: dir, Alloc: alloc, Task: "web", MaxFiles: 100000, MaxSize: 64 << 10},
	}
}

// start is the node's plugin.
func (n *copying) start() {
	l := &link{n}
	n.pump = newPump(context.Background(), n.output, source{Read: l.read, Store: l.store, Event: func(f string, a ...any) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, fmt.Sprintf(f, a...))
	}}, n.marks)
	n.t.Cleanup(func() { n.pump.Close() })
}

func (n *copying) said() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.events)
}

func (n *copying) cut(off bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if off {
		close(n.down)
	} else {
		n.down = make(chan struct{})
	}
}

// kill kills the plugin: nothing is flushed, and of the last write only a part may have been done.
func (n *copying) kill() {
	n.t.Helper()
	n.end()
	for _, stream := range []string{"stdout", "stderr"} {
		m := n.marks[stream]
		if m.Alloc != n.output.Alloc {
			continue
		}
		behind, err := n.output.behind(stream, m.Local)
		must.NoError(n.t, err)
		index, size := logs.End(n.output.AllocDir, n.output.name(stream))
		k := rand.Int64N(min(behind, size, 30000) + 1)
		must.NoError(n.t, logs.Truncate(n.output.AllocDir, n.output.name(stream), index, size-k))
		// what it counts by is right
		here := m.Place.File*10000 + m.Place.Offset + behind - k
		got := n.text(stream)
		got = got[max(0, len(got)-1000):]
		n.tape.mu.Lock()
		must.StrHasSuffix(n.t, string(got), string(n.tape.out[stream][:here]))
		n.tape.mu.Unlock()
	}
}

// end ends the plugin without a word.
func (n *copying) end() {
	n.pump.cancel()
	for _, s := range n.pump.streams {
		<-s.done
	}
	n.pump.mu.Lock()
	n.pump.closed = true
	n.pump.mu.Unlock()
	n.marks = n.tape.get().Logs
}

type link struct{ node *copying }

var errLink = fmt.Errorf("%w: the link is down", endpoint.ErrUnreachable)

func (l *link) off() <-chan struct{} {
	l.node.mu.Lock()
	defer l.node.mu.Unlock()
	return l.node.down
}

func (l *link) store(_ context.Context, marks map[string]endpoint.LogMark) error {
	select {
	case <-l.off():
		return errLink
	default:
	}
	t := l.node.tape
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.record.Epoch != l.node.epoch {
		return endpoint.ErrEpoch
	}
	t.stored++
	maps.Copy(t.record.Logs, marks)
	if rand.IntN(4) == 0 {
		return errLink // the answer is lost
	}
	return nil
}

func (l *link) read(
	ctx context.Context, stream string, from endpoint.Place, skip int64,
) (endpoint.LogReader, error) {
	return &tapeReader{link: l, ctx: ctx, stream: stream, at: from.File*10000 + from.Offset + skip}, nil
}

type tapeReader struct {
	*link
	ctx    context.Context
	stream string
	at     int64
}

func (r *tapeReader) Close() error { return nil }

func (r *tapeReader) Next() (c endpoint.Chunk, err error) {
	t := r.node.tape
	for {
		t.mu.Lock()
		changed, out, removed, over := t.changed, t.out[r.stream], t.removed, t.over
		t.mu.Unlock()
		select {
		case <-r.off():
			return c, errLink
		default:
		}
		if removed > r.at {
			r.at, c.Gap = removed, true
		}
		if r.at < int64(len(out)) {
			n := min(int64(len(out))-r.at, 1+rand.Int64N(32<<10))
			c.Data = out[r.at : r.at+n]
			r.at += n
			c.End = placeAt(r.at)
			return c, nil
		}
		if over {
			return c, io.EOF
		}
		select {
		case <-changed:
		case <-r.off():
			return c, errLink
		case <-r.ctx.Done():
			return c, r.ctx.Err()
		}
	}
}

// text is all that an allocation has of a stream.
func (n *copying) text(stream string) []byte {
	n.t.Helper()
	dir := filepath.Join(n.output.AllocDir, "alloc", "logs")
	known, err := logs.Indexes(dir, "web."+stream)
	must.NoError(n.t, err)
	var all []byte
	for _, i := range known {
		b, err := os.ReadFile(filepath.Join(dir, "web."+stream+"."+strconv.FormatInt(i, 10)))
		must.NoError(n.t, err)
		all = append(all, b...)
	}
	return all
}

// numbered checks that the lines count from 0 to n-1.
func numbered(t *testing.T, all []byte, n int) {
	t.Helper()
	i := 0
	for line := range bytes.Lines(all) {
		if string(line) != strconv.Itoa(i)+"\n" {
			t.Fatalf("line %d is %q", i, line)
		}
		i++
	}
	must.Eq(t, n, i, must.Sprint("lines"))
}

func (n *copying) drain() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	for errors.Is(n.pump.Drain(ctx), endpoint.ErrUnreachable) { // an answer was lost
	}
	must.NoError(n.t, ctx.Err())
}

func TestPump_CopiesEachLineOnceAndInOrder(t *testing.T) {
	const lines = 1_000_000
	tp := newTape()
	go func() { // about 4 s of output
		defer tp.end()
		var b strings.Builder
		for i := range lines {
			b.WriteString(strconv.Itoa(i) + "\n")
			if (i+1)%2500 == 0 {
				tp.print("stdout", b.String())
				tp.print("stderr", b.String())
				b.Reset()
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	nap := func() { time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond) }
	var all []*copying
	var away []func() // what happens when lost nodes come back
	n := newCopying(t, tp, "alloc0")
	n.start()
	for i := range 10 {
		nap()
		n.kill() // and the same allocation again, without a memory
		n.start()
		nap()
		if i == 2 { // a partition shorter than the lease
			n.cut(true)
			nap()
			n.cut(false)
			nap()
		}
		all = append(all, n)
		if i%2 == 0 {
			marks := n.pump.GiveUp() // a drain
			tp.mu.Lock()
			maps.Copy(tp.record.Logs, marks)
			tp.mu.Unlock()
		}
		next := newCopying(t, tp, fmt.Sprintf("alloc%d", i+1))
		if i%2 == 1 { // the node is lost, and goes on for a while: nobody has told it
			old := n
			if i%4 == 1 {
				old.kill()
			}
			away = append(away, func() {
				old.pump.Close()
				must.NoError(t, old.output.yield(tp.get()))
			})
		}
		n = next
		n.start()
		nap()
		for _, back := range away {
			back()
		}
		away = nil
	}
	all = append(all, n)
	n.drain()
	for _, stream := range []string{"stdout", "stderr"} {
		var text []byte
		for _, n := range all {
			text = append(text, n.text(stream)...)
		}
		numbered(t, text, lines)
	}
	for _, n := range all {
		test.SliceEmpty(t, n.said(), test.Sprint(n.output.Alloc))
	}
}

func TestPump_KeepsWhatItCountsByWhenFilesAreFew(t *testing.T) {
	tp := newTape()
	n := newCopying(t, tp, "a")
	n.output.MaxFiles, n.output.MaxSize = 1, 5000
	n.start()
	next := 0
	for range 10 {
		var b strings.Builder
		for range 3000 {
			b.WriteString(strconv.Itoa(next) + "\n")
			next++
		}
		tp.print("stdout", b.String())
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		n.kill()
		n.start()
	}
	tp.end()
	n.drain()
	got := n.text("stdout")
	test.Less(t, 5000*2+lineSlack, len(got), test.Sprint("bytes left"))
	last := next - bytes.Count(got, []byte("\n"))
	for line := range bytes.Lines(got) {
		must.Eq(t, strconv.Itoa(last)+"\n", string(line))
		last++
	}
	must.Eq(t, next, last)
	test.SliceEmpty(t, n.said())
}

const lineSlack = 64 << 10 // of package logs

func TestPump_GivesUpNoMoreThanIsMarked(t *testing.T) {
	tp := newTape()
	n := newCopying(t, tp, "a")
	n.start()
	tp.print("stdout", "0\n1\n")
	waitFor(t, func() bool { return len(n.text("stdout")) == 4 })
	n.end() // before the second mark
	must.Eq(t, endpoint.Place{}, n.marks["stdout"].Place)
	n.start()
	waitFor(t, func() bool { return n.pump.streams[0].isOpen() })
	test.Eq(t, "0\n1\n", string(n.text("stdout")))
	marks := n.pump.GiveUp()
	tp.change(func() { maps.Copy(tp.record.Logs, marks) })
	next := newCopying(t, tp, "b")
	next.start()
	tp.print("stdout", "2\n")
	tp.end()
	next.drain()
	test.Eq(t, "0\n1\n2\n", string(n.text("stdout"))+string(next.text("stdout")))
}

// isOpen reports whether a stream waits for more than what its files have.
func (s *stream) isOpen() bool {
	time.Sleep(100 * time.Millisecond)
	return s.place() == endpoint.Place{}
}

func TestOutput_YieldsWhatAnotherAllocationHas(t *testing.T) {
	at := func(alloc string, offset int64, before *endpoint.LogMark) endpoint.LogMark {
		return endpoint.LogMark{Alloc: alloc, Local: task.LogPlace{Offset: offset}, Before: before}
	}
	mine := at("a", 4, nil)
	for name, c := range map[string]struct {
		owner endpoint.Owner
		mark  endpoint.LogMark
		want  string
	}{
		"another has begun to copy":      {endpoint.Owner{Alloc: "b"}, at("b", 0, &mine), "0\n1\n"},
		"another has copied nothing yet": {endpoint.Owner{Alloc: "b"}, mine, "0\n1\n"},
		"another has followed another": {
			endpoint.Owner{Alloc: "c"}, at("c", 0, &endpoint.LogMark{Alloc: "b"}), "0\n1\n2\n",
		},
		"a later start of the allocation": {endpoint.Owner{Alloc: "a"}, mine, "0\n1\n2\n"},
		"it is being ended":               {endpoint.Owner{Alloc: "b", TaskID: ending + "b/web/1"}, mine, "0\n1\n2\n"},
		"nothing was ever copied":         {endpoint.Owner{Alloc: "b"}, endpoint.LogMark{}, "0\n1\n2\n"},
	} {
		n := newCopying(t, newTape(), "a")
		dir := filepath.Join(n.output.AllocDir, "alloc", "logs")
		must.NoError(t, os.WriteFile(filepath.Join(dir, "web.stdout.0"), []byte("0\n1\n2\n"), 0o644))
		must.NoError(t, n.output.yield(&endpoint.Record{Owner: c.owner, Mutable: endpoint.Mutable{
			Logs: map[string]endpoint.LogMark{"stdout": c.mark, "../stdout": mine},
		}}), must.Sprint(name))
		test.Eq(t, c.want, string(n.text("stdout")), test.Sprint(name))
	}
}

func TestPump_TellsAGap(t *testing.T) {
	tp := newTape()
	n := newCopying(t, tp, "a")
	n.start()
	tp.print("stdout", "0\n1\n2")
	waitFor(t, func() bool { return len(n.text("stdout")) == 5 })
	n.cut(true)
	tp.print("stdout", "\n3\n4\n5\n")
	tp.change(func() { tp.removed = 10 })
	n.cut(false)
	waitFor(t, func() bool { return bytes.HasSuffix(n.text("stdout"), []byte("5\n")) })
	n.end()
	n.start()
	tp.print("stdout", "6\n")
	tp.end()
	n.drain()
	test.Eq(t, "0\n1\n2\n"+missing+"5\n6\n", string(n.text("stdout")))
	must.Len(t, 1, n.said())
	test.StrContains(t, n.said()[0], "stdout has a gap: the endpoint removed output before it was copied")
}

func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	must.Wait(t, until.InitialSuccess(until.BoolFunc(f), until.Timeout(20*time.Second), until.Gap(5*time.Millisecond)))
}

// counted is a reader that is counted while it is open.
type counted struct {
	endpoint.LogReader
	close func()
}

func (c *counted) Close() error {
	c.close()
	return c.LogReader.Close()
}

// What the readers of a connection have not been asked for holds up all that goes over it.
func TestPump_HoldsNoStreamWhileItsFilesWait(t *testing.T) {
	tp := newTape()
	n := newCopying(t, tp, "a")
	logs := filepath.Join(n.output.AllocDir, "alloc", "logs")
	must.NoError(t, os.Rename(logs, logs+".away")) // as a full disk: each write is tried again
	l, open := &link{n}, atomic.Int32{}
	n.pump = newPump(t.Context(), n.output, source{
		Read: func(ctx context.Context, stream string, from endpoint.Place, skip int64) (endpoint.LogReader, error) {
			if stream == "stderr" {
				return nil, io.EOF
			}
			r, err := l.read(ctx, stream, from, skip)
			open.Add(1)
			return &counted{r, sync.OnceFunc(func() { open.Add(-1) })}, err
		},
		Store: l.store, Event: func(string, ...any) {},
	}, n.marks)
	t.Cleanup(func() { n.pump.Close() })
	waitFor(t, func() bool { return open.Load() == 1 })
	tp.print("stdout", "0\n")
	waitFor(t, func() bool { return open.Load() == 0 })
	must.NoError(t, os.Rename(logs+".away", logs))
	tp.print("stdout", "1\n")
	tp.end()
	n.drain()
	test.Eq(t, "0\n1\n", string(n.text("stdout")))
}

func TestPump_StoresMarksOnceASecond(t *testing.T) {
	tp := newTape()
	n := newCopying(t, tp, "a")
	n.start()
	for i := range 120 { // 2.4 s
		tp.print("stdout", strconv.Itoa(i)+"\n")
		time.Sleep(20 * time.Millisecond)
	}
	tp.mu.Lock()
	stored := tp.stored
	tp.mu.Unlock()
	// one before the first byte, of which the answer may be lost, and one a second
	test.Between(t, 2, stored, 8)
	m := n.pump.GiveUp()["stdout"]
	test.Eq(t, placeAt(int64(len(tp.out["stdout"]))), m.Place)
	test.Eq(t, task.LogPlace{Offset: int64(len(tp.out["stdout"]))}, m.Local)
	test.Eq(t, "a", m.Alloc)
}

func TestPump_CostsLittleWhileIdle(t *testing.T) {
	const tasks = 1000
	tp := newTape()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := newCopying(t, tp, "a")
	for i := range tasks {
		n.output.Task = "web" + strconv.Itoa(i)
		n.start()
	}
	waitFor(t, func() bool {
		list, _ := os.ReadDir(filepath.Join(n.output.AllocDir, "alloc", "logs"))
		return len(list) == 2*tasks
	})
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)) / tasks
	t.Logf("%d bytes a task, of which %d stack", each, int64(after.StackInuse-before.StackInuse)/tasks)
	test.Less(t, 32<<10, each, test.Sprint("bytes a task")) // measured: see the log
}

func outputBelow(dir string) output {
	return output{AllocDir: dir, Alloc: "a", Task: "web", MaxFiles: 1, MaxSize: 1 << 20}
}

// The disk of both streams hangs. Here it is what they are read from, in spite of its context.
func TestPump_ClosesWhileItsFilesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		p := newPump(t.Context(), outputBelow(t.TempDir()), source{
			Read: func(context.Context, string, endpoint.Place, int64) (endpoint.LogReader, error) {
				<-hang
				return nil, io.EOF
			},
		}, nil)
		synctest.Wait()
		begun := time.Now()
		p.Close()
		test.Eq(t, closeTime, time.Since(begun))
		close(hang)
	})
}

// An endpoint that is reached and whose log can't be read.
func TestPump_TellsWhatKeepsItFromCopying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("the log is damaged")
		var mu sync.Mutex
		var said []string
		p := newPump(t.Context(), outputBelow(t.TempDir()), source{
			Read: func(context.Context, string, endpoint.Place, int64) (endpoint.LogReader, error) { return nil, broken },
			Event: func(format string, args ...any) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, fmt.Sprintf(format, args...))
			},
		}, nil)
		time.Sleep(10 * time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.Drain(ctx)
		test.ErrorIs(t, err, broken)
		test.ErrorIs(t, err, context.DeadlineExceeded)
		p.Close()
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(said)
		test.Eq(t, []string{"stderr can't be copied: the log is damaged", "stdout can't be copied: the log is damaged"}, said)
	})
}
