// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// fake is an endpoint whose engine answers so.
func fake(t *testing.T, answer http.HandlerFunc) *Endpoint {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	}))
	e, err := New(Options{Host: "tcp://" + engine.Listener.Addr().String(), Lease: time.Minute})
	must.NoError(t, err)
	t.Cleanup(func() {
		must.NoError(t, e.Close())
		engine.Close()
	})
	return e
}

// Docker ends a log at an entry that it can't read, and follows no container that it has not started yet.
func TestLogs_AskAgainWithPauses(t *testing.T) {
	for name, state := range map[string]string{
		"it runs":        `"Running": true, "StartedAt": "2026-01-02T03:04:05Z"`,
		"it has not run": `"Running": false, "StartedAt": "0001-01-01T00:00:00Z"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			line := frame(1, time.Unix(1_700_000_000, 5), "one\n")
			e := fake(t, func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/logs") {
					fmt.Fprintf(w, `{"Id": "1", "State": {%s}, "Config": {}, "HostConfig": {}}`, state)
					return
				}
				asked.Add(1)
				_, _ = io.WriteString(w, line) // what is at the place comes again
			})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if name == "it runs" {
				ctx = t.Context()
			}
			l := &logReader{e: e, ctx: ctx, id: "1"}
			c, err := l.Next()
			must.NoError(t, err)
			must.Eq(t, "one\n", string(c.Data))
			_, err = l.Next()
			if name == "it runs" {
				must.ErrorIs(t, err, errEnds)
				must.False(t, unreached(err))
				must.Between(t, 3, asked.Load(), 10)
			} else {
				must.ErrorIs(t, err, context.DeadlineExceeded)
				must.Between(t, 3, asked.Load(), 7)
				l.leave()
			}
		})
	}
}

func TestPrepare_TellsWhatMayPass(t *testing.T) {
	for name, row := range map[string]struct {
		status int
		body   string
		passes bool
	}{
		"not found":    {404, `{"message": "pull access denied"}`, false},
		"denied":       {403, `{"message": "no"}`, false},
		"refused":      {400, `{"message": "invalid reference"}`, false},
		"down":         {500, `{"message": "dial tcp: connection refused"}`, true},
		"too often":    {429, `{"message": "rate limit"}`, true},
		"ends halfway": {200, `{"errorDetail": {"message": "unexpected EOF"}}`, true},
		"wrong name":   {0, "", false},
	} {
		image := "registry/box:1"
		if row.status == 0 {
			image = "No Image"
		}
		e := fake(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/images/create") {
				w.WriteHeader(row.status)
				_, _ = io.WriteString(w, row.body)
			}
		})
		err := e.ensureImage(t.Context(), &endpoint.Container{Image: image, Pull: "always"}, func(string) {})
		must.Error(t, err, must.Sprint(name))
		test.Eq(t, row.passes, errors.Is(err, endpoint.ErrTemporary), test.Sprintf("%s: %v", name, err))
		test.StrHasPrefix(t, fmt.Sprintf("failed to pull image %q: ", image), err.Error())
		test.False(t, unreached(err), test.Sprint(name))
	}
}

func TestLock_IsOfOneObject(t *testing.T) {
	e := fake(t, func(http.ResponseWriter, *http.Request) {})
	unlock, err := e.lock(t.Context(), "nomad-0")
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for i := range 1000 {
		other, err := e.lock(ctx, fmt.Sprint("nomad-", i+1))
		must.NoError(t, err)
		defer other()
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = e.lock(short, "nomad-0")
	must.True(t, unreached(err))
	must.MapLen(t, 1001, e.locks)
	unlock()
	must.MapLen(t, 1000, e.locks)
	again, err := e.lock(t.Context(), "nomad-0")
	must.NoError(t, err)
	again()
}

// Docker writes that memory lacked some time after the end of the container.
func TestGet_WaitsForTheReasonOfAKill(t *testing.T) {
	for name, row := range map[string]struct {
		hostConfig, exit string
		after            int64 // questions until it says so
		oom              bool
	}{
		"memory lacked":           {`"Memory": 1`, "137", 3, true},
		"it was killed otherwise": {`"Memory": 1`, "137", 1000, false},
		"it is not limited":       {``, "137", 3, false},
		"it ended otherwise":      {`"Memory": 1`, "1", 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			now := time.Now().UTC().Format(time.RFC3339Nano)
			e := fake(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
				switch {
				case strings.HasSuffix(r.URL.Path, "/containers/json"):
					c := claim{Record: endpoint.Record{Name: "nomad-0", Epoch: 1, State: endpoint.Starting}}
					label, err := json.Marshal(&c)
					test.NoError(t, err)
					test.NoError(t, json.NewEncoder(w).Encode([]map[string]any{
						{"Id": "1", "Names": []string{"/nomad-0"}},
						{"Id": "2", "Names": []string{"/" + c.name()},
							"Labels": map[string]string{labelObject: "nomad-0", labelClaim: string(label)}},
					}))
				case strings.HasSuffix(r.URL.Path, "/1/json"):
					fmt.Fprintf(w, `{"Id": "1", "Config": {}, "HostConfig": {%s}, "State": {"StartedAt": %q, "FinishedAt": %q,
						"ExitCode": %s, "OOMKilled": %v}}`, row.hostConfig, now, now, row.exit, asked.Add(1) > row.after)
				default:
					_, _ = io.WriteString(w, "{}")
				}
			})
			r, err := e.Get(t.Context(), "nomad-0")
			must.NoError(t, err)
			must.Eq(t, endpoint.Exited, r.State)
			test.Eq(t, row.oom, r.Exit.OOMKilled)
			test.Between(t, 1, asked.Load(), 10)
		})
	}
}
