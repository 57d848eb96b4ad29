// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// tap is a proxy in front of an engine that knows the requests for logs under way.
type tap struct {
	lines
	mu   sync.Mutex
	logs map[*http.Request]string // to the streams
}

func (e *engine) tap(t *testing.T) (*tap, *docker.Endpoint) {
	p, proxy := &tap{logs: map[*http.Request]string{}}, e.proxy()
	dir, err := os.MkdirTemp("", "tap")
	must.NoError(t, err)
	p.path = filepath.Join(dir, "s")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); strings.HasSuffix(r.URL.Path, "/logs") {
			p.mu.Lock()
			p.logs[r] = strings.Repeat("stdout ", len(q["stdout"])) + strings.Repeat("stderr ", len(q["stderr"]))
			p.mu.Unlock()
			defer func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.logs, r)
			}()
		}
		proxy.ServeHTTP(w, r)
	}))
	must.NoError(t, server.Listener.Close())
	server.Listener, err = net.Listen("unix", p.path)
	must.NoError(t, err)
	server.Start()
	c, err := docker.New(docker.Options{Host: "unix:///on/the/host", Dial: p.dial, Lease: leaseTime})
	must.NoError(t, err)
	t.Cleanup(func() {
		must.NoError(t, c.Close())
		server.Close()
		must.NoError(t, os.RemoveAll(dir))
	})
	return p, c
}

// has waits until these are the requests.
func (p *tap) has(t *testing.T, want ...string) {
	t.Helper()
	must.NoError(t, testsupport.Poll(10*time.Second, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		var got []string
		for _, streams := range p.logs {
			got = append(got, strings.TrimSpace(streams))
		}
		if slices.Sort(got); !slices.Equal(want, got) {
			return fmt.Errorf("requests for logs are %q, not %q", got, want)
		}
		return nil
	}))
}

// noFollow checks that nothing goes on for readers, after the test and those in it.
func noFollow(t *testing.T) {
	t.Cleanup(func() {
		must.NoError(t, testsupport.Poll(10*time.Second, func() error {
			stacks := make([]byte, 1<<20)
			if stacks = stacks[:runtime.Stack(stacks, true)]; strings.Contains(string(stacks), "docker.(*follow)") {
				return fmt.Errorf("a request for logs goes on:\n%s", stacks)
			}
			return nil
		}))
	})
}

// copyLog reads from a place on, until there are enough chunks, or all of them (0). Where the connection is cut, it
// goes on.
func copyLog(
	ctx context.Context, c *docker.Endpoint, name, stream string, from endpoint.Place, enough int, to func([]byte),
) (end endpoint.Place, cuts int, err error) {
	l, err := c.Logs(ctx, name, stream, from, 0)
	if err != nil {
		return from, 0, err
	}
	defer l.Close()
	for n := 0; enough == 0 || n < enough; {
		chunk, err := l.Next()
		switch {
		case errors.Is(err, endpoint.ErrUnreachable) && cuts < 10:
			cuts++
			continue
		case err != nil:
			return from, cuts, err
		case chunk.Gap:
			return from, cuts, fmt.Errorf("a gap before %.40q", chunk.Data)
		}
		to(chunk.Data)
		n, from = n+1, chunk.End
	}
	return from, cuts, nil
}

// One reads stdout from the beginning to the end. When it has half of it, others begin to take turns with stderr. The
// connection is cut meanwhile. Each has each line once.
func TestLogs_ShareARequest(t *testing.T) {
	noFollow(t)
	onEngines(t, func(t *testing.T, e *engine) {
		p, c := e.tap(t)
		const lines = 3000
		r := object(t, e)
		got := start(t, c, r, shell(`trap 'echo end; echo end >&2; exit' USR1; i=0
			while [ $i -lt 3000 ]; do
				i=$((i+1)); echo out $i; echo error $i >&2
				[ $((i % 20)) -gt 0 ] || sleep 0.01
			done
			while :; do sleep 0.05; done`))
		wants := func(word string) string {
			var b strings.Builder
			for i := range lines {
				fmt.Fprintln(&b, word, i+1)
			}
			return b.String()
		}
		var (
			all              sync.WaitGroup
			outs, errs       strings.Builder
			half, end        = make(chan struct{}), make(chan struct{}, 2)
			out, errors      = wants("out"), wants("error")
			turns, cuts, cut int
		)
		all.Go(func() {
			_, n, err := copyLog(t.Context(), c, r.Name, "stdout", endpoint.Place{}, 0, func(b []byte) {
				was := outs.Len()
				if outs.Write(b); was <= len(out)/2 && outs.Len() > len(out)/2 {
					close(half)
				}
				if was < len(out) && outs.Len() >= len(out) {
					end <- struct{}{}
				}
			})
			cuts += n
			test.ErrorIs(t, err, io.EOF)
		})
		all.Go(func() {
			<-half
			var place endpoint.Place
			for err := error(nil); err == nil; turns++ {
				var n int
				place, n, err = copyLog(t.Context(), c, r.Name, "stderr", place, turns%7+1, func(b []byte) {
					was := errs.Len()
					if errs.Write(b); was < len(errors) && errs.Len() >= len(errors) {
						end <- struct{}{}
					}
					if turns == 5 {
						p.cut()
					}
				})
				if cut += n; err != nil {
					test.ErrorIs(t, err, io.EOF)
				}
			}
		})
		<-end
		<-end
		p.has(t, "stdout stderr")
		must.NoError(t, c.Signal(t.Context(), got.Ref(), "SIGUSR1"))
		all.Wait()
		t.Logf("%d turns, cut %d and %d times", turns, cuts, cut)
		test.Greater(t, 5, turns)
		test.Positive(t, cuts)
		must.True(t, out+"end\n" == outs.String())
		must.True(t, errors+"end\n" == errs.String())
		p.has(t)
		must.NoError(t, c.Remove(t.Context(), got.Ref()))
	})
}

func TestLogs_WaitForNoReaderThatIsClosed(t *testing.T) {
	noFollow(t)
	onEngines(t, func(t *testing.T, e *engine) {
		p, c := e.tap(t)
		r := object(t, e)
		spec := shell(`echo out; echo error >&2; sleep 1
			for i in $(seq 1 5); do seq 1 10000; seq 1 10000 >&2; done; exec sleep 1000`)
		spec.MaxSize = 64 << 20
		got := start(t, c, r, spec)
		var lines strings.Builder
		for i := range 10000 {
			fmt.Fprintln(&lines, i+1)
		}
		want := "error\n" + strings.Repeat(lines.String(), 5)
		for name, end := range map[string]func(endpoint.LogReader, context.CancelFunc){
			"closed":    func(l endpoint.LogReader, _ context.CancelFunc) { test.NoError(t, l.Close()) },
			"cancelled": func(_ endpoint.LogReader, cancel context.CancelFunc) { cancel() },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			idle, err := c.Logs(ctx, r.Name, "stdout", endpoint.Place{}, 0)
			must.NoError(t, err)
			_, err = idle.Next()
			must.NoError(t, err)
			l, err := c.Logs(t.Context(), r.Name, "stderr", endpoint.Place{}, 0)
			must.NoError(t, err)
			var b strings.Builder
			time.AfterFunc(200*time.Millisecond, func() { end(idle, cancel) })
			for b.Len() < len(want) {
				chunk, err := l.Next()
				must.NoError(t, err)
				b.Write(chunk.Data)
			}
			must.True(t, want == b.String(), must.Sprint(name))
			p.has(t, "stderr")
			_, err = idle.Next()
			must.Error(t, err)
			must.NoError(t, l.Close())
			cancel()
			p.has(t)
		}

		// One far behind has a request of its own: what is between them would be sent to both.
		l, err := c.Logs(t.Context(), r.Name, "stdout", endpoint.Place{}, 0)
		must.NoError(t, err)
		defer l.Close()
		chunk, err := l.Next()
		must.NoError(t, err)
		old := endpoint.Place{File: chunk.End.File - int64(time.Hour)}
		far, err := c.Logs(t.Context(), r.Name, "stderr", old, 0)
		must.NoError(t, err)
		defer far.Close()
		_, err = far.Next()
		must.NoError(t, err)
		p.has(t, "stderr", "stdout")
		must.NoError(t, far.Close())
		must.NoError(t, l.Close())
		p.has(t)
		_, err = c.Stop(t.Context(), got.Ref(), "SIGKILL", 0, "over")
		must.NoError(t, err)
		must.NoError(t, c.Remove(t.Context(), got.Ref()))
	})
}
