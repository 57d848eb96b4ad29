// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package endpointtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The rows on streams.
func init() {
	rows = append(rows,
		row{"output goes on at a place", nil, places},
		row{"output is followed", nil, follows},
		row{"output that was removed is a gap", func(c Column) bool { return c.Gaps > 0 }, gaps},
		row{"a command has streams", nil, execs},
		row{"a command has a terminal", nil, terminal},
		row{"a command ends with its caller", nil, execEnds},
		row{"a lost connection is one error", func(c Column) bool { return c.Cut != nil }, reconnect},
	)
}

func places(x *run) {
	ref := x.shell("i=0; while [ $i -lt 2000 ]; do echo line $i; echo error $i >&2; i=$((i+1)); done")
	x.exited(ref)
	var want, errs strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "line %d\n", i)
		fmt.Fprintf(&errs, "error %d\n", i)
	}
	out, gap := x.output(ref.Name, "stdout", endpoint.Place{}, 0)
	must.Eq(x, want.String(), out)
	must.False(x, gap)
	out, _ = x.output(ref.Name, "stderr", endpoint.Place{}, 0)
	must.Eq(x, errs.String(), out)
	out, _ = x.output(ref.Name, "stdout", endpoint.Place{}, 12345)
	must.Eq(x, want.String()[12345:], out)
	out, _ = x.output(ref.Name, "stdout", endpoint.Place{}, 1<<30)
	must.Eq(x, "", out)

	// from each place that was told
	l, err := x.e().Logs(x.context(), ref.Name, "stdout", endpoint.Place{}, 0)
	must.NoError(x, err)
	defer l.Close()
	before := 0
	for n := 0; ; n++ {
		c, err := l.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.NoError(x, err)
		before += len(c.Data)
		if n%10 > 0 && before < want.Len() {
			continue
		}
		rest, gap := x.output(ref.Name, "stdout", c.End, 0)
		must.Eq(x, want.String()[before:], rest)
		must.False(x, gap)
		if before+5 < want.Len() {
			rest, _ = x.output(ref.Name, "stdout", c.End, 5)
			must.Eq(x, want.String()[before+5:], rest)
		}
	}
	must.Eq(x, want.Len(), before)
	_, err = x.e().Logs(x.context(), ref.Name, "stdfoo", endpoint.Place{}, 0)
	must.Error(x, err)
}

func follows(x *run) {
	ref := x.shell("trap 'echo two' USR1; trap 'echo three; exit 0' USR2; echo one; while :; do sleep 0.05; done")
	l, err := x.e().Logs(x.context(), ref.Name, "stdout", endpoint.Place{}, 0)
	must.NoError(x, err)
	defer l.Close()
	next := func(want string) {
		x.Helper()
		got := ""
		for got != want {
			c, err := l.Next()
			must.NoError(x, err, must.Sprintf("got %q", got))
			got += string(c.Data)
			must.StrHasPrefix(x, got, want)
		}
	}
	next("one\n")
	must.NoError(x, x.e().Signal(x.context(), ref, "SIGUSR1"))
	next("two\n")
	must.NoError(x, x.e().Signal(x.context(), ref, "SIGUSR2"))
	next("three\n")
	_, err = l.Next()
	must.ErrorIs(x, err, io.EOF)
}

func gaps(x *run) {
	size := x.Gaps
	s := x.Column.Shell(fmt.Sprintf("echo first; sleep 0.3; head -c %d /dev/zero | tr '\\0' '\\n'; echo last", 6*size))
	s.MaxFiles, s.MaxSize = 2, size
	ref := x.start(s)
	begin := x.says(ref.Name, "first\n")
	x.exited(ref)
	for _, from := range []endpoint.Place{{}, begin} {
		out, gap := x.output(ref.Name, "stdout", from, 0)
		must.True(x, gap)
		must.True(x, strings.HasSuffix(out, "\nlast\n"))
		must.Less(x, 5*int(size), len(out))
	}
}

func execs(x *run) {
	ref := x.shell("exec sleep 1000")
	var out, errs stream
	text := strings.Repeat("some input\n", 20000)
	e, err := x.e().Exec(x.context(), ref, &endpoint.ExecOptions{
		Command: []string{"/bin/sh", "-c", "cat; echo error >&2; exit 5"},
		Stdin:   io.NopCloser(strings.NewReader(text)), Stdout: &out, Stderr: &errs,
	})
	must.NoError(x, err)
	must.Eq(x, 5, e.Code)
	must.Eq(x, text, out.String())
	must.Eq(x, "error\n", errs.String())
	_, code := x.exec(ref, "kill -9 $$")
	must.True(x, code == 0 || code == 137)
	e, err = x.e().Exec(x.context(), ref, &endpoint.ExecOptions{Command: []string{"/no/such/program"}})
	must.True(x, err != nil || e.Code >= 126, must.Sprintf("%+v", e))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if out, code := x.exec(ref, fmt.Sprintf("echo %d; exit %d", i, i)); out != fmt.Sprintf("%d\n", i) || code != i {
				x.Errorf("%d: got %q, %d", i, out, code)
			}
		})
	}
	wg.Wait()
}

func terminal(x *run) {
	ref := x.shell("exec sleep 1000")
	stdin, keys := io.Pipe()
	screen := &display{changed: make(chan struct{}, 1)}
	sizes := make(chan endpoint.WindowSize, 2)
	sizes <- endpoint.WindowSize{Width: 80, Height: 24}
	ended := make(chan *task.Exit, 1)
	e, ctx := x.e(), x.context()
	go func() {
		e, err := e.Exec(ctx, ref, &endpoint.ExecOptions{
			Command: []string{"/bin/sh"}, TTY: true, Stdin: stdin, Stdout: screen, Resize: sizes,
		})
		if err != nil {
			e = &task.Exit{Lost: true, Reason: err.Error()}
		}
		ended <- e
	}()
	write := func(line string) {
		_, err := io.WriteString(keys, line+"\n")
		must.NoError(x, err)
	}
	screen.ask(x, func() { write("echo size $(stty size)") }, "size 24 80")
	sizes <- endpoint.WindowSize{Width: 132, Height: 50}
	screen.ask(x, func() { write("echo size $(stty size)") }, "size 50 132")
	write("test -t 0 && exit 6")
	exit := <-ended
	must.Eq(x, 6, exit.Code, must.Sprintf("%+v, %q", exit, screen.text()))

	short := &display{changed: make(chan struct{}, 1)} // its input ends before its output
	exit, err := e.Exec(ctx, ref, &endpoint.ExecOptions{
		Command: []string{"/bin/sh", "-c", "sleep 0.5; echo late; exit 7"}, TTY: true,
		Stdin: io.NopCloser(strings.NewReader("")), Stdout: short,
	})
	must.NoError(x, err)
	must.Eq(x, 7, exit.Code)
	must.Eq(x, "late\r\n", short.text())
}

// display is what a terminal shows.
type display struct {
	mu      sync.Mutex
	b       strings.Builder
	changed chan struct{}
}

func (d *display) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.b.Write(b)
}

func (*display) Close() error { return nil }

func (d *display) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.b.String()
}

// ask repeats a question until the answer is there.
func (d *display) ask(x *run, question func(), answer string) {
	x.Helper()
	for range 100 {
		question()
		for range 10 {
			if strings.Contains(d.text(), answer) {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	x.Fatalf("wanted %q on the terminal, got %q", answer, d.text())
}

func execEnds(x *run) {
	ref := x.shell("exec sleep 1000")
	ctx, cancel := context.WithCancel(x.context())
	go func() {
		time.Sleep(300 * time.Millisecond)
		cancel()
	}()
	_, err := x.e().Exec(ctx, ref, &endpoint.ExecOptions{Command: []string{"/bin/sh", "-c", "exec sleep 98765"}})
	must.Error(x, err)
	x.within(func() error {
		out, _ := x.exec(ref, "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f 2>/dev/null; echo; done")
		if strings.Contains(out, "sleep 98765\n") || strings.Contains(out, "sleep 98765 \n") {
			return errors.New("the command runs on")
		}
		return nil
	})
}

func reconnect(x *run) {
	ref := x.shell("echo one; trap 'echo two; exit 9' USR1; while :; do sleep 0.05; done")
	x.says(ref.Name, "one\n")
	e := x.connect()
	_, err := e.Probe(x.context())
	must.NoError(x, err)
	watched, read := make(chan error, 1), make(chan error, 1)
	ctx := x.context()
	l, err := e.Logs(ctx, ref.Name, "stdout", endpoint.Place{}, 0)
	must.NoError(x, err)
	defer l.Close()
	first, err := l.Next()
	must.NoError(x, err)
	end, text := first.End, string(first.Data)
	go func() {
		_, err := e.Watch(ctx, ref)
		watched <- err
	}()
	go func() {
		for {
			c, err := l.Next()
			if err != nil {
				read <- err
				return
			}
			end, text = c.End, text+string(c.Data)
		}
	}()
	time.Sleep(200 * time.Millisecond)
	x.Column.Cut(x, e)
	must.ErrorIs(x, <-watched, endpoint.ErrUnreachable)
	must.ErrorIs(x, <-read, endpoint.ErrUnreachable)
	must.NoError(x, e.Renew(x.context(), ref, endpoint.Mutable{}), must.Sprint("the next call connects again"))
	must.NoError(x, e.Signal(x.context(), ref, "SIGUSR1"))
	r, err := e.Watch(x.context(), ref)
	must.NoError(x, err)
	must.Eq(x, 9, r.Exit.Code)
	rest, gap := x.output(ref.Name, "stdout", end, 0)
	must.False(x, gap)
	must.Eq(x, "one\ntwo\n", text+rest)
}
