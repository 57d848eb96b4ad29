// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

func TestStreams_WaitForTheLastOutput(t *testing.T) {
	t.Parallel()
	frame, err := json.Marshal(api.StreamFrame{File: "main.stdout.0", Data: []byte("last words\n")})
	must.NoError(t, err)
	late := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		follow := r.URL.Query().Get("follow") == "true"
		if follow {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-late
		}
		if r.URL.Query().Get("type") == api.FSLogNameStdout {
			w.Write(frame)
		}
		if follow {
			w.(http.Flusher).Flush()
			<-r.Context().Done() // Nomad does not end it
		}
	}))
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL})
	must.NoError(t, err)
	var out bytes.Buffer
	namespace := "default"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // which ends the streams
	run := &jobRun{client: client, job: &api.Job{Namespace: &namespace}, out: term.NewLines(&out)}
	streams := newStreams(run)
	streams.follow(ctx, &api.Allocation{ID: "a"}, "main", false)
	time.AfterFunc(1500*time.Millisecond, func() { close(late) })
	streams.drain(ctx)
	streams.stop()
	test.Eq(t, "last words\n", out.String())
}

// A task of the job may go on when another has failed, and its stream is always behind.
func TestStreams_DoNotWaitForATaskThatKeepsPrinting(t *testing.T) {
	t.Parallel()
	frame, err := json.Marshal(api.StreamFrame{File: "main.stdout.0", Data: []byte("word\n")})
	must.NoError(t, err)
	var sent atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("follow") != "true" {
			for range sent.Load() + 2 {
				w.Write(frame)
			}
			return
		}
		for r.Context().Err() == nil {
			w.Write(frame)
			w.(http.Flusher).Flush()
			sent.Add(1)
			time.Sleep(100 * time.Millisecond)
		}
	}))
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL})
	must.NoError(t, err)
	namespace := "default"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // which ends the streams
	run := &jobRun{client: client, job: &api.Job{Namespace: &namespace}, out: term.NewLines(io.Discard)}
	streams := newStreams(run)
	streams.follow(ctx, &api.Allocation{ID: "a"}, "main", false)
	begin := time.Now()
	streams.drain(ctx)
	took := time.Since(begin)
	test.False(t, took > 30*time.Second, test.Sprintf("it took %s", took))
	streams.stop()
}
