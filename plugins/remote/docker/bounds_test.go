// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// An engine may be anybody's: what it answers is bounded.
func TestList_EndsAnAnswerWithoutEnd(t *testing.T) {
	written := 0
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/volumes") {
			return
		}
		w.Header().Set("Content-Type", "text/plain") // whatever it says that it is
		_, err := io.WriteString(w, `{"Volumes": [{"Name": "`)
		for junk := bytes.Repeat([]byte("a"), 1<<20); err == nil && written < 4*maxAnswer; written += len(junk) {
			_, err = w.Write(junk)
		}
	}))
	defer engine.Close()
	e, err := New(Options{Host: "tcp://" + engine.Listener.Addr().String(), Lease: time.Minute})
	must.NoError(t, err)
	_, err = e.List(t.Context())
	must.ErrorContains(t, err, "too large")
	must.NoError(t, e.Close())
	engine.Close()
	test.Less(t, 2*maxAnswer, written)
}

// What takes a few bytes in JSON takes hundreds in memory.
func TestList_MakesLittleOfManyElements(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/containers/json") {
			_, _ = io.WriteString(w, "["+strings.Repeat("null,", maxAnswer/10)+"null]")
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	defer engine.Close()
	e, err := New(Options{Host: "tcp://" + engine.Listener.Addr().String(), Lease: time.Minute})
	must.NoError(t, err)
	_, err = e.List(t.Context())
	must.ErrorContains(t, err, "more than")
	must.NoError(t, e.Close())
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	test.Less(t, 1<<30, m.Sys)
}

// It takes longer to load than a claim to make. What a killed plugin has left is removed by one that has made no claim.
func TestList_KeepsTheImageOfItsClaims(t *testing.T) {
	removed := 0
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/images/"+claimImage):
			removed++
			fallthrough
		case strings.HasSuffix(r.URL.Path, "/containers/json"):
			_, _ = io.WriteString(w, "[]")
		default: // a claim is made, and gone when it is listed
			_, _ = io.WriteString(w, `{"Id": "1"}`)
		}
	}))
	defer engine.Close()
	e, err := New(Options{Host: "tcp://" + engine.Listener.Addr().String(), Lease: time.Minute})
	must.NoError(t, err)
	_, err = e.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, 1, removed)
	must.NoError(t, e.create(t.Context(), &claim{}))
	_, err = e.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, 1, removed)
	must.NoError(t, e.Close())
	must.Eq(t, 2, removed)
}

func TestLogs_HaveNoPieceWithoutEnd(t *testing.T) {
	in := frames{body: bytes.NewReader([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})}
	_, _, err := in.next()
	must.ErrorContains(t, err, "4294967295 bytes")
}

func TestStart_TakesAShortID(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, r.Body) // the labels, as they were asked for
	}))
	defer engine.Close()
	e, err := New(Options{Host: "tcp://" + engine.Listener.Addr().String(), Lease: time.Minute})
	must.NoError(t, err)
	c := &claim{id: "1"}
	first, err := e.mark(t.Context(), &view{top: c, box: &box{id: "2"}})
	must.NoError(t, err)
	test.True(t, first)
	must.NoError(t, e.Close())
}

func TestPrepare_TellsWhatTheEngineWarnsOf(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"Id": "1", "Warnings": ["Limitation discarded."]}`)
	}))
	defer engine.Close()
	e, err := New(Options{Host: "tcp://" + engine.Listener.Addr().String(), Lease: time.Minute})
	must.NoError(t, err)
	var said []string
	s := &endpoint.Spec{Task: "t", Container: &endpoint.Container{Image: "x"}}
	must.NoError(t, e.createBox(t.Context(), &claim{}, s, func(text string) { said = append(said, text) }))
	test.Eq(t, []string{"Warning: Limitation discarded."}, said)
	must.NoError(t, e.Close())
}

// Readers that wait for output keep no buffer.
func TestLogs_WaitWithoutABuffer(t *testing.T) {
	const readers, each = 200, 16 << 10
	line := []byte("\x01\x00\x00\x00\x00\x00\x00\x1a2026-01-02T03:04:05Z text\n")
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // a sync.Pool is emptied by the second
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var writers []*io.PipeWriter
	var all sync.WaitGroup
	for range readers {
		r, w := io.Pipe()
		writers = append(writers, w)
		l := &logReader{ctx: t.Context(), chunks: make(chan *endpoint.Chunk, 1)}
		all.Go(func() {
			test.ErrorIs(t, share(r, [2]*logReader{l}, &lag{}), io.EOF)
			close(l.chunks)
		})
		_, err := w.Write(line)
		must.NoError(t, err)
		c, err := l.Next()
		must.NoError(t, err)
		must.Eq(t, "text\n", string(c.Data))
		waits := make(chan struct{})
		all.Go(func() {
			close(waits)
			_, _ = l.Next()
		})
		<-waits
	}
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return heap()-before < readers*each }),
		wait.Timeout(10*time.Second), wait.Gap(50*time.Millisecond)))
	for _, w := range writers {
		must.NoError(t, w.Close())
	}
	all.Wait()
}
