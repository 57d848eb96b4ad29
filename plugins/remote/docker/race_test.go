// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Three nodes take an object over at the same time. (The contract has it once.)
func TestTake_HasOneWinnerFiftyTimes(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) { race(t, e, 50) })
}

func race(t *testing.T, e *engine, rounds int) {
	ctx, r := t.Context(), object(t, e)
	nodes := map[string]*docker.Endpoint{"a": e.connect(t), "b": e.connect(t), "c": e.connect(t)}
	first := start(t, nodes["a"], r, shell(`exec sleep 1000`))
	ref := first.Ref()
	for range rounds {
		var (
			group  sync.WaitGroup
			mu     sync.Mutex
			winner *endpoint.Record
		)
		for name, c := range nodes {
			group.Go(func() {
				got, err := c.Take(ctx, ref, owner(name))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && winner == nil && got.Owner == owner(name):
					winner = got
				case err == nil:
					t.Errorf("%s took it over too: %+v", name, got)
				case !errors.Is(err, endpoint.ErrEpoch):
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		group.Wait()
		must.NotNil(t, winner)
		must.Eq(t, ref.Epoch+1, winner.Epoch)
		must.Eq(t, first.PID, winner.PID)
		for _, c := range nodes {
			seen, err := c.Get(ctx, r.Name)
			must.NoError(t, err)
			must.Eq(t, winner.Owner, seen.Owner)
			must.Eq(t, winner.Epoch, seen.Epoch)
		}
		ref = winner.Ref()
	}
	all, err := e.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", "dev.outrider.object="+r.Name),
	})
	must.NoError(t, err)
	must.Len(t, 2, all.Items) // the program, and one claim
}

func TestCreate_HasOneWinner(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		r := object(t, e)
		var (
			group sync.WaitGroup
			mu    sync.Mutex
			won   []string
		)
		for _, name := range []string{"a", "b", "c", "d"} {
			c := e.connect(t)
			mine := *r
			mine.Owner = owner(name)
			group.Go(func() {
				err := c.Create(t.Context(), &mine)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won = append(won, name)
				} else if !errors.Is(err, endpoint.ErrExists) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		group.Wait()
		must.Len(t, 1, won)
		got, err := e.connect(t).Get(t.Context(), r.Name)
		must.NoError(t, err)
		must.Eq(t, owner(won[0]), got.Owner)
		must.NoError(t, e.connect(t).Remove(t.Context(), got.Ref()))
	})
}

// steppedClock is an engine whose clock is off.
func steppedClock(t *testing.T, e *engine, off *atomic.Int64) string {
	path := strings.TrimPrefix(e.host, "unix://")
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker" },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Date", time.Now().Add(time.Duration(off.Load())).UTC().Format(http.TimeFormat))
			return nil
		},
		FlushInterval: -1,
	})
	t.Cleanup(proxy.Close)
	return strings.Replace(proxy.URL, "http://", "tcp://", 1)
}

// A lease lasts as long as it lasts, whatever the engine's clock shows.
func TestLease_OutlastsAStepOfTheClock(t *testing.T) {
	const lease = 3 * time.Second
	onEngines(t, func(t *testing.T, e *engine) {
		var off atomic.Int64
		node := func(host string) *docker.Endpoint {
			c, err := docker.New(docker.Options{Host: host, Lease: lease})
			must.NoError(t, err)
			t.Cleanup(func() { must.NoError(t, c.Close()) })
			return c
		}
		a, b, r := node(e.host), node(steppedClock(t, e, &off)), object(t, e)
		left := func() time.Duration {
			seen, err := b.Get(t.Context(), r.Name)
			must.NoError(t, err)
			return seen.Lease
		}
		must.NoError(t, a.Create(t.Context(), r))
		must.Positive(t, left())
		for _, step := range []time.Duration{time.Hour, -time.Hour} {
			ref := endpoint.Ref{Name: r.Name, Epoch: 1}
			must.NoError(t, a.Renew(t.Context(), ref, endpoint.Mutable{}))
			off.Store(int64(step))
			must.Between(t, lease-time.Second, left(), lease)
			time.Sleep(lease + 100*time.Millisecond)
			must.Negative(t, left())
		}
		must.NoError(t, a.Remove(t.Context(), endpoint.Ref{Name: r.Name, Epoch: 1}))
	})
}

// What a person's `docker system prune` and `docker volume prune -a` do: claims are stopped containers, and what their
// owner has written are volumes that nothing uses.
func TestClaims_AreMadeAgainByTheOwner(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, a, b, r := t.Context(), e.connect(t), e.connect(t), object(t, e)
		got := start(t, a, r, shell(`exec sleep 1000`))
		taken, err := b.Take(ctx, got.Ref(), owner("b"))
		must.NoError(t, err)
		mark := endpoint.LogMark{Place: endpoint.Place{File: 1, Offset: 2}, Alloc: "b"}
		must.NoError(t, b.Renew(ctx, taken.Ref(), endpoint.Mutable{Logs: map[string]endpoint.LogMark{"stdout": mark}}))

		// as of `docker volume prune -a`
		volumes, err := e.api.VolumeList(ctx, client.VolumeListOptions{
			Filters: client.Filters{}.Add("label", "dev.outrider.object="+r.Name),
		})
		must.NoError(t, err)
		must.Positive(t, len(volumes.Items))
		for _, v := range volumes.Items {
			_, err := e.api.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
			must.NoError(t, err)
		}
		unknown, err := a.Get(ctx, r.Name)
		must.NoError(t, err)
		must.Eq(t, []any{endpoint.Running, owner("a")}, []any{unknown.State, unknown.Owner})
		must.MapEmpty(t, unknown.Logs)
		must.NoError(t, b.Renew(ctx, taken.Ref(), endpoint.Mutable{}))
		seen, err := a.Get(ctx, r.Name)
		must.NoError(t, err)
		must.Eq(t, taken.Ref(), seen.Ref())
		must.Eq(t, mark, seen.Logs["stdout"])

		prune := func() {
			_, err := e.api.ContainerPrune(ctx, client.ContainerPruneOptions{
				Filters: client.Filters{}.Add("label", "dev.outrider.object="+r.Name),
			})
			must.NoError(t, err)
		}
		prune()
		// as it was started, until the owner has renewed its lease
		seen, err = a.Get(ctx, r.Name)
		must.NoError(t, err)
		must.Eq(t, endpoint.Running, seen.State)
		must.Eq(t, 1, seen.Epoch)
		must.Positive(t, seen.Lease)
		must.NoError(t, b.Renew(ctx, taken.Ref(), endpoint.Mutable{}))
		seen, err = a.Get(ctx, r.Name)
		must.NoError(t, err)
		must.Eq(t, taken.Ref(), seen.Ref())
		must.Eq(t, owner("b"), seen.Owner)
		must.ErrorIs(t, a.Renew(ctx, got.Ref(), endpoint.Mutable{}), endpoint.ErrEpoch)

		prune()
		// it is taken over before
		again, err := a.Take(ctx, got.Ref(), owner("a"))
		must.NoError(t, err)
		must.Greater(t, 2, again.Epoch)
		must.Eq(t, got.PID, again.PID)
		must.ErrorIs(t, b.Renew(ctx, taken.Ref(), endpoint.Mutable{}), endpoint.ErrEpoch)
	})
}

func TestExit_OfARemovedContainerIsLost(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, r := t.Context(), e.connect(t), object(t, e)
		got := start(t, c, r, shell(`exec sleep 1000`))
		watched := make(chan *endpoint.Record, 1)
		go func() {
			w, err := c.Watch(ctx, got.Ref())
			if err != nil {
				t.Error(err)
			}
			watched <- w
		}()
		_, err := e.api.ContainerRemove(ctx, r.Name, client.ContainerRemoveOptions{Force: true})
		must.NoError(t, err)
		w := <-watched
		must.Eq(t, endpoint.Exited, w.State)
		must.True(t, w.Exit.Lost || w.Exit.Signal == 9, must.Sprintf("%+v", w.Exit)) // it is killed before
		seen, err := c.Get(ctx, r.Name)
		must.NoError(t, err)
		must.StrContains(t, seen.Exit.Reason, "was removed")
		must.True(t, seen.Exit.Lost)
		// and another node, that knows nothing of the start, after the first renewal
		must.NoError(t, c.Renew(ctx, got.Ref(), endpoint.Mutable{}))
		seen, err = e.connect(t).Get(ctx, r.Name)
		must.NoError(t, err)
		must.Eq(t, endpoint.Exited, seen.State)
		must.NoError(t, c.Remove(ctx, got.Ref()))
	})
}

func TestStop_OfWhatWasNotStarted(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, r := t.Context(), e.connect(t), object(t, e)
		must.NoError(t, c.Create(ctx, r))
		ref := endpoint.Ref{Name: r.Name, Epoch: 1}
		must.NoError(t, c.Prepare(ctx, ref, shell(`true`), func(string) {}))
		got, err := c.Stop(ctx, ref, "SIGTERM", 0, "no more")
		must.NoError(t, err)
		must.Eq(t, endpoint.Exited, got.State)
		must.Eq(t, "no more", got.Reason)
		must.Error(t, c.Prepare(ctx, ref, shell(`true`), func(string) {}))
		must.NoError(t, c.Remove(ctx, ref))
	})
}

func TestGet_TellsADamagedObject(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, r := t.Context(), e.connect(t), object(t, e)
		must.NoError(t, c.Create(ctx, r))
		_, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
			Name: r.Name + ".e2", Image: "localhost/outrider-claim", Config: claimConfig(r.Name),
		})
		must.NoError(t, err)
		got, err := c.Get(ctx, r.Name)
		must.NoError(t, err)
		must.Eq(t, endpoint.Damaged, got.State)
		must.Error(t, c.Renew(ctx, endpoint.Ref{Name: r.Name, Epoch: 1}, endpoint.Mutable{}))
		must.NoError(t, c.Remove(ctx, endpoint.Ref{Name: r.Name}))
		_, err = c.Get(ctx, r.Name)
		must.ErrorIs(t, err, endpoint.ErrGone)
	})
}

// An engine that does not remove a container whose start failed holds up no other change of it for longer than a
// question.
func TestStart_WaitsForNoRemovalWithoutEnd(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		proxy := e.proxy()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/containers/") {
				<-r.Context().Done()
				return
			}
			proxy.ServeHTTP(w, r)
		}))
		defer server.Close()
		ctx, r, s := t.Context(), object(t, e), shell("")
		c, err := docker.New(docker.Options{Host: strings.Replace(server.URL, "http:", "tcp:", 1), Lease: leaseTime})
		must.NoError(t, err)
		defer c.Close()
		s.Container.Entrypoint = []string{"/no/such/program"}
		ref := endpoint.Ref{Name: r.Name, Epoch: 1}
		must.NoError(t, c.Create(ctx, r))
		must.NoError(t, c.Prepare(ctx, ref, s, func(string) {}))
		ended := make(chan error, 1)
		go func() {
			_, err := c.Start(ctx, ref, s)
			ended <- err
		}()
		select {
		case err := <-ended:
			must.ErrorContains(t, err, "/no/such/program")
		case <-time.After(time.Minute):
			t.Fatal("it waits for the removal")
		}
		must.NoError(t, e.connect(t).Remove(ctx, ref))
	})
}

// A call that waits for another one of its object ends with its context.
func TestCall_WaitsNoLongerThanItsContext(t *testing.T) {
	answer := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-answer }))
	defer engine.Close()
	defer close(answer)
	c, err := docker.New(docker.Options{Host: "tcp://" + engine.Listener.Addr().String(), Lease: leaseTime})
	must.NoError(t, err)
	defer c.Close()
	first, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	ref := endpoint.Ref{Name: "nomad-r", Epoch: 1}
	go func() { ended <- c.Renew(first, ref, endpoint.Mutable{}) }()
	time.Sleep(100 * time.Millisecond) // it has the lock by then, or the second is the first
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	err = c.Renew(ctx, ref, endpoint.Mutable{})
	must.True(t, unreachable(err), must.Sprint(err))
	must.Less(t, 5*time.Second, time.Since(begun))
	end()
	must.True(t, unreachable(<-ended))
}
