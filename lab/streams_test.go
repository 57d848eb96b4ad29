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

	"github.com/outrider-dev/outrider/lab/internal/term"
)

func TestStreams_WaitForTheLastOutput(t *testing.T) {
	t.Parallel()
	frame, err := json.Marshal(api.StreamFrame{File: "main.stdout.0", Data: []byte("last words\n")})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if got := out.String(); got != "last words\n" {
		t.Errorf("got %q", got)
	}
}

// A task of the job may go on when another has failed, and its stream is always behind.
func TestStreams_DoNotWaitForATaskThatKeepsPrinting(t *testing.T) {
	t.Parallel()
	frame, err := json.Marshal(api.StreamFrame{File: "main.stdout.0", Data: []byte("word\n")})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	namespace := "default"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // which ends the streams
	run := &jobRun{client: client, job: &api.Job{Namespace: &namespace}, out: term.NewLines(io.Discard)}
	streams := newStreams(run)
	streams.follow(ctx, &api.Allocation{ID: "a"}, "main", false)
	begin := time.Now()
	streams.drain(ctx)
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	streams.stop()
}
