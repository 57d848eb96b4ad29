// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/nomad"
)

// unanswered is an agent whose host volume plugin answers only after a restart of the agent.
type unanswered struct {
	unregistered
	asked atomic.Int32
}

func (u *unanswered) Info() Info {
	return Info{Settled: true, HostVolumes: []string{"a"}}
}
func (u *unanswered) Start(context.Context) error {
	u.asked.Add(1)
	return nil
}

func TestWaitHealthy_RestartsAnAgentWithoutItsHostVolumePlugin(t *testing.T) {
	t.Parallel()
	u := &unanswered{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/agent/self":
			fmt.Fprint(w, `{"config": {"DataDir": "/d"}, "stats": {"client": {"node_id": "1", "last_heartbeat": "1s"}}}`)
		case u.asked.Load() > 0:
			fmt.Fprint(w, `{"ID": "1", "Status": "ready", "Attributes": {"plugins.host_volume.a.version": "1.0.0"}}`)
		default:
			fmt.Fprint(w, `{"ID": "1", "Status": "ready"}`)
		}
	}))
	defer s.Close()
	var err error
	u.client, err = nomad.NewClient(s.URL)
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = WaitHealthy(ctx, u)
	must.NoError(t, err)
	must.Eq(t, 1, u.asked.Load())
}

// unregistered is a new agent whose server is ready before its client has registered.
type unregistered struct {
	Agent
	client *api.Client
	starts int
	begun  func() // called at each start
}

func (u *unregistered) Info() Info                  { return Info{} }
func (u *unregistered) Client() *api.Client         { return u.client }
func (u *unregistered) DataDir() string             { return "/d" }
func (u *unregistered) Alive(context.Context) error { return nil }
func (u *unregistered) Stop(context.Context) error  { return nil }
func (u *unregistered) Log() (string, error)        { return "", nil }
func (u *unregistered) Start(context.Context) error {
	u.starts++
	u.begun()
	return nil
}

func TestWaitHealthy_RestartsASlowClientOnce(t *testing.T) {
	t.Parallel()
	const snapshot = "a snapshot"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/agent/self":
			fmt.Fprint(w, `{"config": {"DataDir": "/d"}, "stats": {"client": {}}}`)
		case "/v1/status/leader":
			fmt.Fprint(w, `"127.0.0.1:1"`)
		case "/v1/operator/snapshot":
			sum := sha256.Sum256([]byte(snapshot))
			w.Header().Set("Digest", "sha-256="+base64.StdEncoding.EncodeToString(sum[:]))
			fmt.Fprint(w, snapshot)
		default:
			t.Errorf("asked for %s", r.URL)
		}
	}))
	defer s.Close()
	client, err := nomad.NewClient(s.URL)
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	u := &unregistered{client: client, begun: func() { time.AfterFunc(5*time.Second, cancel) }} // time for a second start
	if err := WaitHealthy(ctx, u); err == nil || u.starts != 1 {
		t.Errorf("the agent was restarted %d times, want 1; %v", u.starts, err)
	}
}

func TestWaitHealthy_ReportsADriversOwnMessageImmediately(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/agent/self":
			fmt.Fprint(w, `{"config": {"DataDir": "/d"}, "stats": {"client": {"node_id": "1", "last_heartbeat": "1s"}}}`)
		case "/v1/node/1":
			fmt.Fprint(w, `{"ID": "1", "Status": "ready",
				"Drivers": {"a": {"Detected": true, "HealthDescription": "no cgroup"}}}`)
		default:
			t.Errorf("asked for %s", r.URL)
		}
	}))
	defer s.Close()
	client, err := nomad.NewClient(s.URL)
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var shown []string
	show := func(format string, args ...any) {
		shown = append(shown, fmt.Sprintf(format, args...))
		time.AfterFunc(300*time.Millisecond, cancel) // the agent is polled a few more times
	}
	err = WaitHealthy(ctx, &ill{unregistered{client: client}}, show)
	test.ErrorContains(t, err, "no cgroup")
	want := "driver a is unhealthy: no cgroup"
	must.SliceLen(t, 1, shown, must.Sprintf("shown %q, want %q once", shown, want))
	test.Eq(t, want, shown[0], test.Sprintf("shown %q, want %q once", shown, want))
}

// ill is an agent whose driver is not healthy.
type ill struct{ unregistered }

func (*ill) Info() Info { return Info{Plugins: []string{"nomad-driver-a"}} }
