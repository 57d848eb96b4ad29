// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// A container that the engine can't read, or that it locks, is told as one damaged object among the others. That is no
// answer of an engine that can't be reached.
func TestList_TellsOneThatCantBeRead(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, good, bad := t.Context(), e.connect(t), object(t, e), object(t, e)
		good.Key.Index, bad.Key.Index = 1, 2
		good.Name, bad.Name = good.Key.Name("0123456789ab"), bad.Key.Name("0123456789ab")
		start(t, c, good, shell("exec sleep 1000"))
		start(t, c, bad, shell("exec sleep 1000"))
		record, err := c.Get(ctx, bad.Name)
		must.NoError(t, err)
		var state atomic.Value
		proxy := httptest.NewServer(&sick{state: &state, id: record.More["container"], engine: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker" },
			Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", strings.TrimPrefix(e.host, "unix://"))
			}},
		}})
		defer proxy.Close()
		other, err := docker.New(docker.Options{Host: strings.Replace(proxy.URL, "http:", "tcp:", 1), Lease: leaseTime})
		must.NoError(t, err)
		defer other.Close()
		for _, s := range []string{"one can't be read", "one hangs"} {
			state.Store(s)
			began := time.Now()
			all, err := other.List(ctx)
			must.NoError(t, err, must.Sprint(s))
			must.Less(t, 20*time.Second, time.Since(began)) // two questions wait so long without a limit of its own
			found := map[string]*endpoint.Record{}
			for _, r := range all {
				found[r.Name] = r
			}
			must.Eq(t, endpoint.Running, found[good.Name].State, must.Sprint(s))
			must.Eq(t, endpoint.Damaged, found[bad.Name].State, must.Sprint(s))
			must.Eq(t, s == "one hangs", found[bad.Name].Busy, must.Sprint(s))
			must.StrContains(t, found[bad.Name].Reason, "the engine answers, but this object could not", must.Sprint(s))
		}
		state.Store("it is cut")
		_, err = other.List(ctx)
		must.True(t, unreachable(err), must.Sprint(err))
		for _, r := range []*endpoint.Record{good, bad} {
			end(t, c, &endpoint.Record{Name: r.Name, Epoch: 1, Owner: r.Owner})
		}
	})
}

// sick is an engine that does not inspect a container.
type sick struct {
	engine http.Handler
	id     string
	state  *atomic.Value
}

func (s *sick) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	one := strings.HasSuffix(r.URL.Path, "/containers/"+s.id+"/json")
	switch state := s.state.Load(); {
	case one && state == "one can't be read":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(`{"message": "layer does not exist"}`))
	case one && state == "one hangs":
		<-r.Context().Done()
	case (one || strings.HasSuffix(r.URL.Path, "/_ping")) && state == "it is cut":
		panic(http.ErrAbortHandler)
	default:
		s.engine.ServeHTTP(w, r)
	}
}
