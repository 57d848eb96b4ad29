// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/moby/moby/client"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// listen returns a port of the loopback interface that the engine has.
func (e *engine) listen(t *testing.T) net.Listener {
	type result struct {
		l   net.Listener
		err error
	}
	c := make(chan result)
	go func() {
		runtime.LockOSThread() // a thread in another network is not used again: it ends with this
		if e.pid > 0 {
			ns, err := os.Open(procNetwork(e.pid))
			if err != nil {
				c <- result{nil, err}
				return
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				c <- result{nil, err}
				return
			}
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		c <- result{l, err}
	}()
	r := <-c
	must.NoError(t, r.err)
	return r.l
}

// slow limits the rate of a registry's answers, so that a pull takes its time.
func slow(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/sha256:") && r.Method == http.MethodGet {
			time.Sleep(100 * time.Millisecond)
		}
		h.ServeHTTP(w, r)
	})
}

func TestPrepare_PullsTheImage(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx := t.Context()
		l := e.listen(t)
		server := &httptest.Server{
			Listener: l, Config: &http.Server{Handler: slow(registry.New(registry.Logger(log.New(io.Discard, "", 0))))},
		}
		server.Start()
		defer server.Close()
		image := l.Addr().String() + "/box:1"
		drop := func() {
			_, err := e.api.ImageRemove(ctx, image, client.ImageRemoveOptions{})
			must.NoError(t, err)
		}
		_, err := e.api.ImageTag(ctx, client.ImageTagOptions{Source: testImage, Target: image})
		must.NoError(t, err)
		push, err := e.api.ImagePush(ctx, image, client.ImagePushOptions{RegistryAuth: "e30="})
		must.NoError(t, err)
		must.NoError(t, push.Wait(ctx))
		drop()

		c := e.connect(t)
		for _, want := range []struct {
			pull  string
			pulls bool
		}{{"missing", true}, {"missing", false}, {"always", true}, {"never", false}} {
			r := object(t, e)
			s, ref := shell("exit 5"), endpoint.Ref{Name: r.Name, Epoch: 1}
			s.Container.Image, s.Container.Pull = image, want.pull
			var told []string
			must.NoError(t, c.Create(ctx, r))
			must.NoError(t, c.Prepare(ctx, ref, s, func(s string) { told = append(told, s) }))
			must.Eq(t, want.pulls, len(told) > 0, must.Sprint(told))
			if want.pulls {
				must.Eq(t, "Pulling image "+image, told[0])
				must.StrHasPrefix(t, "Pulled image "+image+" in ", told[len(told)-1])
			}
			_, err := c.Start(ctx, ref, s)
			must.NoError(t, err)
			w, err := c.Watch(ctx, ref)
			must.NoError(t, err)
			must.Eq(t, 5, w.Exit.Code)
			must.NoError(t, c.Remove(ctx, ref))
		}
		drop()
	})
}
