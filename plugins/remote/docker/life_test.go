// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// object is a record of a new object, which is removed with the test.
func object(t *testing.T, e *engine) *endpoint.Record {
	k := endpoint.Key{Region: "global", Namespace: "default", Job: t.Name(), Group: "g", Task: "t"}
	r := &endpoint.Record{
		Name: k.Name("0123456789abcdef"), Key: k, Hash: "0123456789abcdef", Owner: owner("a"), Job: endpoint.Service,
		Reason: "started", Kill: endpoint.Kill{Signal: "SIGTERM", Grace: time.Second},
	}
	t.Cleanup(func() {
		ctx := context.Background()
		all, err := e.api.ContainerList(ctx, client.ContainerListOptions{
			All: true, Filters: client.Filters{}.Add("label", "dev.outrider.object="+r.Name),
		})
		must.NoError(t, err)
		for _, c := range all.Items {
			_, err := e.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
			must.NoError(t, err)
		}
		volumes, err := e.api.VolumeList(ctx, client.VolumeListOptions{
			Filters: client.Filters{}.Add("label", "dev.outrider.object="+r.Name),
		})
		must.NoError(t, err)
		for _, v := range volumes.Items {
			_, err := e.api.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
			must.NoError(t, err)
		}
		_, _ = e.api.ImageRemove(ctx, "localhost/outrider-claim", client.ImageRemoveOptions{})
	})
	return r
}

func owner(node string) endpoint.Owner {
	return endpoint.Owner{Alloc: "alloc-" + node, Node: node, TaskID: "task-" + node}
}

// shell is a spec that runs a script.
func shell(script string) *endpoint.Spec {
	return &endpoint.Spec{
		Task: "t", Env: map[string]string{"PATH": "/bin", "SECRETS": endpoint.DirSecrets, "TASK_DIR": endpoint.DirTask},
		MaxFiles: 2, MaxSize: 1 << 20,
		Container: &endpoint.Container{Image: testImage, Entrypoint: []string{"sh", "-c"}, Command: []string{script}},
	}
}

func files(t *testing.T, all map[string]string) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range all {
		must.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}))
		_, err := io.WriteString(w, text)
		must.NoError(t, err)
	}
	must.NoError(t, w.Close())
	return &b
}

// start starts an object for its owner.
func start(t *testing.T, c *docker.Endpoint, r *endpoint.Record, s *endpoint.Spec) *endpoint.Record {
	t.Helper()
	ref := endpoint.Ref{Name: r.Name, Epoch: 1}
	must.NoError(t, c.Create(t.Context(), r))
	must.NoError(t, c.Prepare(t.Context(), ref, s, func(string) {}))
	got, err := c.Start(t.Context(), ref, s)
	must.NoError(t, err)
	return got
}

// output reads a stream to its end.
func output(t *testing.T, c *docker.Endpoint, name, stream string, from endpoint.Place, skip int64) string {
	t.Helper()
	l, err := c.Logs(t.Context(), name, stream, from, skip)
	must.NoError(t, err)
	defer l.Close()
	var b strings.Builder
	for {
		chunk, err := l.Next()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		must.NoError(t, err)
		must.False(t, chunk.Gap)
		b.Write(chunk.Data)
	}
}

// A release tells Nomad exit code 0, so there is none of what has ended, but that of one whose answer was lost.
func TestRelease_RefusesWhatHasEnded(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, r := t.Context(), e.connect(t), object(t, e)
		ref := start(t, c, r, shell("exit 3")).Ref()
		_, err := c.Watch(ctx, ref)
		must.NoError(t, err)
		must.EqError(t, c.Release(ctx, ref, endpoint.Mutable{}, "drained"), "failed to release object in state exited")
		got, err := c.Get(ctx, r.Name)
		must.NoError(t, err)
		must.False(t, got.GivenUp)
		must.NoError(t, c.Remove(ctx, ref))

		got = start(t, c, r, shell("exec sleep 1000"))
		must.NoError(t, c.Release(ctx, ref, endpoint.Mutable{}, "drained"))
		must.NoError(t, e.killed(got))
		must.NoError(t, c.Release(ctx, ref, endpoint.Mutable{}, "drained"))
		got, err = c.Get(ctx, r.Name)
		must.NoError(t, err)
		must.True(t, got.GivenUp)
		must.Eq(t, endpoint.Exited, got.State)
		must.NoError(t, c.Remove(ctx, got.Ref()))
	})
}

// killed kills a container, and waits for its end.
func (e *engine) killed(r *endpoint.Record) error {
	ctx := context.Background()
	if _, err := e.api.ContainerKill(ctx, r.Name, client.ContainerKillOptions{Signal: "SIGKILL"}); err != nil {
		return err
	}
	w := e.api.ContainerWait(ctx, r.Name, client.ContainerWaitOptions{})
	select {
	case err := <-w.Error:
		return err
	case <-w.Result:
		return nil
	}
}

func TestTake_FencesTheFormerOwner(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, a, b, r := t.Context(), e.connect(t), e.connect(t), object(t, e)
		ref := start(t, a, r, shell(`exec sleep 1000`)).Ref()
		mark := endpoint.LogMark{Place: endpoint.Place{File: 1, Offset: 2}, Alloc: "a"}
		must.NoError(t, a.Renew(ctx, ref, endpoint.Mutable{Logs: map[string]endpoint.LogMark{"stdout": mark}}))

		watched := make(chan *endpoint.Record, 1)
		go func() {
			w, err := a.Watch(ctx, ref)
			if err != nil {
				t.Error(err)
			}
			watched <- w
		}()
		got, err := b.Take(ctx, ref, owner("b"))
		must.NoError(t, err)
		must.Eq(t, 2, got.Epoch)
		must.Eq(t, owner("b"), got.Owner)
		must.Eq(t, endpoint.Running, got.State)
		must.Eq(t, mark, got.Logs["stdout"])
		must.Eq(t, 2, (<-watched).Epoch)

		must.ErrorIs(t, a.Renew(ctx, ref, endpoint.Mutable{}), endpoint.ErrEpoch)
		must.ErrorIs(t, a.Release(ctx, ref, endpoint.Mutable{}, ""), endpoint.ErrEpoch)
		must.ErrorIs(t, a.Signal(ctx, ref, "SIGTERM"), endpoint.ErrEpoch)
		must.ErrorIs(t, a.Put(ctx, ref, files(t, nil)), endpoint.ErrEpoch)
		must.ErrorIs(t, a.Prepare(ctx, ref, shell(""), func(string) {}), endpoint.ErrEpoch)
		must.ErrorIs(t, a.Remove(ctx, ref), endpoint.ErrEpoch)
		_, err = a.Start(ctx, ref, shell(""))
		must.ErrorIs(t, err, endpoint.ErrEpoch)
		_, err = a.Stop(ctx, ref, "SIGTERM", 0, "")
		must.ErrorIs(t, err, endpoint.ErrEpoch)
		_, err = a.Take(ctx, ref, owner("a"))
		must.ErrorIs(t, err, endpoint.ErrEpoch)
		again, err := b.Take(ctx, ref, owner("b")) // its answer was lost
		must.NoError(t, err)
		must.Eq(t, got.Epoch, again.Epoch)

		must.NoError(t, b.Release(ctx, got.Ref(), endpoint.Mutable{}, "drained"))
		must.NoError(t, b.Release(ctx, got.Ref(), endpoint.Mutable{}, "drained")) // the same
		free, err := a.Get(ctx, r.Name)
		must.NoError(t, err)
		must.Eq(t, endpoint.Released, free.State)
		must.Eq(t, "drained", free.Reason)
		must.True(t, free.GivenUp)
		must.Eq(t, got.PID, free.PID)
		must.Eq(t, mark, free.Logs["stdout"])

		back, err := a.Take(ctx, free.Ref(), owner("a"))
		must.NoError(t, err)
		must.Eq(t, endpoint.Running, back.State)
		must.False(t, back.GivenUp)
		must.Eq(t, got.PID, back.PID)
		_, err = a.Stop(ctx, back.Ref(), "SIGKILL", 0, "over")
		must.NoError(t, err)
		must.NoError(t, a.Remove(ctx, back.Ref()))
	})
}
