// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package endpointtest is the contract of endpoint.Endpoint as a table of tests, for every kind
// of endpoint: a Column. What kinds differ in is declared there, and nowhere else.
package endpointtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Column is a kind of endpoint under test.
type Column struct {
	// Connect returns a new connection to the one endpoint under test, as of another node. It
	// is closed with the test.
	Connect func(t testing.TB) endpoint.Endpoint

	// Lease is that of these connections: short, since a test waits for its end.
	Lease time.Duration

	// Shell is a specification that runs a script by a POSIX shell as the main process. TASK_DIR in
	// its environment is endpoint.DirTask.
	Shell func(script string) *endpoint.Spec

	// Missing is one whose program does not exist there.
	Missing *endpoint.Spec

	// User is another user that a task may run as, by its id, empty where there is no choice.
	User string

	// Memory is whether limits of memory are enforced.
	Memory bool

	// KillModes is whether a stop signal can go to all processes.
	KillModes bool

	// Gaps is whether the endpoint forgets old output by MaxFiles and MaxSize, in files of at
	// least this size, 0 if not.
	Gaps int64

	// Parallel is whether rows run at the same time, because they mostly wait.
	Parallel bool

	// Cut ends the connection of an endpoint as a network does, nil if it has none that lasts.
	Cut func(t testing.TB, e endpoint.Endpoint)

	// Lose makes the exit of an object that runs unknown, nil if that can't happen.
	Lose func(t testing.TB, r *endpoint.Record)
}

// Run runs the table.
func Run(t *testing.T, c Column) {
	for _, row := range rows {
		if row.needs == nil || row.needs(c) {
			t.Run(row.name, func(t *testing.T) {
				if c.Parallel {
					t.Parallel()
				}
				row.test(&run{T: t, Column: c})
			})
		}
	}
}

type row struct {
	name  string
	needs func(c Column) bool
	test  func(x *run)
}

// run is one row for a column.
type run struct {
	*testing.T
	Column
	one endpoint.Endpoint
}

// limit is longer than anything in a test takes.
const limit = time.Minute

func (x *run) context() context.Context {
	ctx, cancel := context.WithTimeout(x.T.Context(), limit)
	x.Cleanup(cancel)
	return ctx
}

// connect returns another node's connection.
func (x *run) connect() endpoint.Endpoint {
	e := x.Column.Connect(x.T)
	x.Cleanup(func() { _ = e.Close() })
	return e
}

// e is the connection that a row uses first.
func (x *run) e() endpoint.Endpoint {
	if x.one == nil {
		x.one = x.connect()
	}
	return x.one
}

var serial atomic.Int64

// taskName is that of all objects.
const taskName = "web"

func owner(node string) endpoint.Owner {
	return endpoint.Owner{Alloc: "alloc-" + node, Node: node, TaskID: "alloc-" + node + "/web/1"}
}

// object makes an object for the owner "a", which is removed with the test.
func (x *run) object() endpoint.Ref {
	x.Helper()
	k := endpoint.Key{
		Region: "global", Namespace: "default", Job: x.Name(), Group: "g", Task: taskName, Index: int(serial.Add(1)),
	}
	r := &endpoint.Record{
		Name: k.Name("0123456789abcdef"), Key: k, Hash: "0123456789abcdef", Owner: owner("a"),
		Job: endpoint.Service, JobIndex: 42, Reason: "started",
		Kill: endpoint.Kill{Signal: "SIGTERM", Grace: time.Second}, Orphan: time.Hour,
	}
	must.NoError(x, x.e().Create(x.context(), r))
	x.Cleanup(func() { x.clear(r.Name) })
	return endpoint.Ref{Name: r.Name, Epoch: 1, Start: r.Owner.TaskID}
}

// clear removes an object, whoever owns it.
func (x *run) clear(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	e := x.Column.Connect(x.T)
	defer e.Close()
	r, err := e.Get(ctx, name)
	if errors.Is(err, endpoint.ErrGone) {
		return
	}
	must.NoError(x, err)
	if r.State == endpoint.Running || r.State == endpoint.Released {
		r, err = e.Take(ctx, r.Ref(), owner("clear"))
		must.NoError(x, err)
		r, err = e.Stop(ctx, r.Ref(), "SIGKILL", 0, "end of the test")
		must.NoError(x, err)
	}
	must.NoError(x, e.Remove(ctx, r.Ref()))
}

// start makes an object that runs this.
func (x *run) start(s *endpoint.Spec) endpoint.Ref {
	x.Helper()
	ref := x.object()
	must.NoError(x, x.e().Prepare(x.context(), ref, s, func(string) {}))
	r, err := x.e().Start(x.context(), ref, s)
	must.NoError(x, err)
	must.Eq(x, ref, r.Ref())
	return ref
}

func (x *run) shell(script string) endpoint.Ref {
	x.Helper()
	return x.start(x.Column.Shell(script))
}

func (x *run) get(name string) *endpoint.Record {
	x.Helper()
	r, err := x.e().Get(x.context(), name)
	must.NoError(x, err)
	return r
}

// exited waits for the end of an object.
func (x *run) exited(ref endpoint.Ref) *endpoint.Record {
	x.Helper()
	r, err := x.e().Watch(x.context(), ref)
	must.NoError(x, err)
	must.Eq(x, endpoint.Exited, r.State, must.Sprintf("%+v", r))
	must.NotNil(x, r.Exit)
	return r
}

// output reads a stream to its end.
func (x *run) output(name, stream string, from endpoint.Place, skip int64) (text string, gap bool) {
	x.Helper()
	l, err := x.e().Logs(x.context(), name, stream, from, skip)
	must.NoError(x, err)
	defer l.Close()
	var b strings.Builder
	for {
		c, err := l.Next()
		if errors.Is(err, io.EOF) {
			return b.String(), gap
		}
		must.NoError(x, err)
		gap = gap || c.Gap
		b.Write(c.Data)
	}
}

// says waits until the output of an object has this text, and returns the place behind a chunk
// with all of it.
func (x *run) says(name, text string) endpoint.Place {
	x.Helper()
	ctx, cancel := context.WithCancel(x.context())
	defer cancel()
	l, err := x.e().Logs(ctx, name, "stdout", endpoint.Place{}, 0)
	must.NoError(x, err)
	defer l.Close()
	var b strings.Builder
	for {
		c, err := l.Next()
		must.NoError(x, err, must.Sprintf("wanted %q, got %q", text, b.String()))
		if b.Write(c.Data); strings.Contains(b.String(), text) {
			return c.End
		}
	}
}

// stream is a buffer as the output of a command.
type stream struct{ bytes.Buffer }

func (*stream) Close() error { return nil }

// exec runs a script in an object, and returns its output and exit code.
func (x *run) exec(ref endpoint.Ref, script string) (string, int) {
	x.Helper()
	var out stream
	e, err := x.e().Exec(x.context(), ref, &endpoint.ExecOptions{
		Command: []string{"/bin/sh", "-c", script}, Stdout: &out, Stderr: &out,
	})
	must.NoError(x, err)
	return out.String(), e.Code
}

// file is one of a tar stream.
type file struct {
	name, text string
	mode       int64
	typ        byte
}

func archive(t testing.TB, files ...file) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Typeflag: f.typ, Size: int64(len(f.text))}
		switch f.typ {
		case 0:
			h.Typeflag = tar.TypeReg
		case tar.TypeSymlink:
			h.Linkname, h.Size, f.text = f.text, 0, ""
		}
		must.NoError(t, w.WriteHeader(h))
		_, err := io.WriteString(w, f.text)
		must.NoError(t, err)
	}
	must.NoError(t, w.Close())
	return &b
}

// within polls until a function returns no error.
func (x *run) within(f func() error) {
	x.Helper()
	testsupport.Within(x, limit, f)
}

// together calls a function n times at the same time and returns the errors.
func together(n int, f func(i int) error) []error {
	begin, errs := make(chan struct{}), make(chan error, n)
	for i := range n {
		go func() {
			<-begin
			errs <- f(i)
		}()
	}
	close(begin)
	var all []error
	for range n {
		all = append(all, <-errs)
	}
	return all
}

// oneWins fails the test unless one has no error, and all others this one.
func (x *run) oneWins(errs []error, other error) {
	x.Helper()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			must.ErrorIs(x, err, other)
		}
	}
	must.Eq(x, 1, won, must.Sprintf("%v", errs))
}

func sprint(r *endpoint.Record) string { return fmt.Sprintf("%+v %+v", r, r.Exit) }
