package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

func TestLastWordsAreWaitedForHoweverLateTheyCome(t *testing.T) {
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
