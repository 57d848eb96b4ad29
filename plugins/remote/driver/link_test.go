// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// simulated is a host without a driver. It answers the calls Claim, Change and List of package shim.
type simulated struct {
	claim  func(*shim.ClaimRequest) (*shim.ClaimReply, error)
	change func(*shim.ChangeRequest) error
	runs   []shim.Run
}

// link returns a connection to the host, without a driver.
func (s simulated) link(t *testing.T) *host.Link {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.UnknownServiceHandler(s.serve))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///host", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	must.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &host.Link{Shim: conn}
}

func (s simulated) serve(_ any, stream grpc.ServerStream) error {
	call, _ := grpc.MethodFromServerStream(stream)
	switch call {
	case "/outrider.remote.Host/Claim":
		var request shim.ClaimRequest
		err := stream.RecvMsg(&request)
		if err != nil {
			return err
		}
		reply, err := s.claim(&request)
		if err != nil {
			return err
		}
		return stream.SendMsg(reply)
	case "/outrider.remote.Host/Change":
		var request shim.ChangeRequest
		err := stream.RecvMsg(&request)
		if err != nil {
			return err
		}
		err = s.change(&request)
		if err != nil {
			return err
		}
	case "/outrider.remote.Host/List":
		return stream.SendMsg(&shim.ListReply{Runs: s.runs})
	}
	return stream.SendMsg(&shim.Nothing{})
}

func TestTidy_OneRunDoesNotHoldUpOthers(t *testing.T) {
	over := make(chan struct{})
	var attempts atomic.Int32 // counts the attempts to end the stuck run
	link := simulated{change: func(q *shim.ChangeRequest) error {
		if q.TaskID != "stuck" {
			return nil
		}
		attempt := attempts.Add(1)
		<-over
		if attempt == 1 {
			return errors.New("a process did not end")
		}
		return nil
	}}.link(t)
	e := newEngine(Config{}, hclog.NewNullLogger())
	for run, endpoint := range map[string]string{"stuck": "box", "a": "box", "b": "box", "c": "box", "d": "other"} {
		left := &remoteTask{config: &drivers.TaskConfig{}, engine: e, saved: saved{Endpoint: endpoint, RunID: run}}
		e.left.Store(left, true)
	}
	remains := func(want ...string) bool {
		var runs []string
		for left := range e.left.Range {
			runs = append(runs, left.(*remoteTask).saved.RunID)
		}
		slices.Sort(runs)
		return slices.Equal(want, runs)
	}
	for range 3 {
		e.tidy(t.Context(), "box", link)
	}
	testsupport.Eventually(t, "the other runs are ended", func() bool { return remains("d", "stuck") })
	must.Eq(t, 1, attempts.Load())
	close(over)
	testsupport.Eventually(t, "another attempt ends the run", func() bool {
		e.tidy(t.Context(), "box", link)
		return remains("d")
	})
	must.NoError(t, e.Close())
}

// The host may be shared with another cluster that has a job of the same name.
func TestTidy_EndsOnlyRunsOfKnownAllocations(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/job/web":
			_, _ = w.Write([]byte(`{"ID": "web", "Stop": true}`))
		case "/v1/allocation/known":
			_, _ = w.Write([]byte(`{"ID": "known", "ClientStatus": "complete"}`))
		default:
			http.Error(w, "alloc not found", http.StatusNotFound)
		}
	}))
	defer api.Close()
	var ended []string
	host := simulated{change: func(q *shim.ChangeRequest) error {
		ended = append(ended, q.TaskID)
		return nil
	}}
	for _, alloc := range []string{"unknown", "known", ""} {
		host.runs = append(host.runs, shim.Run{
			TaskID: alloc + "/main", Key: `["global","default","web","group","0","main",""]`, Owner: shim.Owner{AllocID: alloc},
			State: shim.Released, Alone: time.Hour,
		})
	}
	e := newEngine(Config{API: agentapi.Config{Address: api.URL}}, hclog.NewNullLogger())
	e.tidy(t.Context(), "box", host.link(t))
	must.Eq(t, []string{"known/main"}, ended)
	must.NoError(t, e.Close())
}

// Nomad must not report a task as running after the task has ended on another node.
func TestReclaim_ReportsATakenRunThatIsGone(t *testing.T) {
	reply := &shim.ClaimReply{Verdict: shim.Held, Owner: shim.Owner{AllocID: "b"}}
	link := simulated{claim: func(*shim.ClaimRequest) (*shim.ClaimReply, error) { return reply, nil }}.link(t)
	taken := &remoteTask{config: &drivers.TaskConfig{ID: "a/b/c"}, event: func(string, ...any) {}}
	mine, err := taken.reclaim(t.Context(), link)
	must.NoError(t, err)
	must.False(t, mine)
	reply = &shim.ClaimReply{Verdict: shim.None}
	_, err = taken.reclaim(t.Context(), link)
	must.Eq(t, codes.NotFound, status.Code(err))
}
