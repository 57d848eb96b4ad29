// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// wheelhouse is a directory with these wheels, which every user can read.
func wheelhouse(t testing.TB, wheels ...wheel.Wheel) string {
	t.Helper()
	dir := mkdir(t)
	for _, w := range wheels {
		must.NoError(t, w.Write(dir))
	}
	return dir
}

// heldIndex is a package index (PEP 503) that does not answer until it is told to.
type heldIndex struct {
	url   string               // for index_url
	asked chan context.Context // gets that of each request that is held

	release func() // may be called twice
}

// holdIndex serves wheels until the end of the test.
func holdIndex(t testing.TB, wheels ...wheel.Wheel) *heldIndex {
	t.Helper()
	dir := wheelhouse(t, wheels...)
	released := make(chan struct{})
	x := &heldIndex{asked: make(chan context.Context, 100), release: sync.OnceFunc(func() { close(released) })}
	index := wheel.Index(dir)
	s := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		default:
			x.asked <- r.Context()
			select {
			case <-released:
			case <-r.Context().Done():
				return
			}
		}
		index.ServeHTTP(answer, r)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(x.release)
	x.url = s.URL + "/simple"
	return x
}

// wait returns when an installer waits for an answer: one that lives.
func (x *heldIndex) wait(t testing.TB, a *alloc) {
	t.Helper()
	for timeout := time.After(60 * time.Second); ; {
		select {
		case request := <-x.asked:
			if request.Err() == nil {
				return
			}
		case <-timeout:
			t.Fatalf("no installer asks the index: %s", a.story())
		}
	}
}
