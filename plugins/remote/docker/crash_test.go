// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// killed is a node that is killed when its engine has done some change, and before it is told so.
type killed struct {
	host  string
	after int64 // that many changes
	seen  atomic.Int64
	dead  atomic.Bool
}

func (k *killed) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if k.dead.Load() {
		return nil, errors.New("the node was killed")
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", strings.TrimPrefix(k.host, "unix://"))
	return &killedConn{Conn: c, node: k}, err
}

type killedConn struct {
	net.Conn
	node *killed
	last atomic.Bool
}

func (c *killedConn) Write(b []byte) (int, error) {
	if c.node.dead.Load() && !c.last.Load() {
		return 0, errors.New("the node was killed")
	}
	change := slices.ContainsFunc([]string{"POST ", "PUT ", "DELETE "}, func(m string) bool {
		return strings.HasPrefix(string(b), m)
	})
	if change && c.node.seen.Add(1) == c.node.after {
		c.last.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *killedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b) // the engine's answer
	if c.last.Load() {
		c.node.dead.Store(true)
	}
	if c.node.dead.Load() {
		return 0, io.EOF
	}
	return n, err
}

// crash kills a node after each change that a call of these makes, until it makes less.
func crash(t *testing.T, e *engine, node func(t *testing.T, c *docker.Endpoint, dir string) error,
	next func(t *testing.T, c *docker.Endpoint, dir string),
) {
	steps, over := int64(1), false
	for ; ; steps++ {
		k := &killed{host: e.host, after: steps}
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			c, err := docker.New(docker.Options{Host: e.host, Lease: leaseTime, Dial: k.dial})
			must.NoError(t, err)
			dir := t.TempDir()
			must.NoError(t, os.WriteFile(filepath.Join(dir, "ran"), nil, 0o600))
			err = node(t, c, dir)
			over = !k.dead.Load()
			must.NoError(t, c.Close())
			must.Eq(t, over, err == nil, must.Sprint(err))
			if err != nil {
				must.ErrorIs(t, err, endpoint.ErrUnreachable)
			}
			other, err := docker.New(docker.Options{Host: e.host, Lease: leaseTime})
			must.NoError(t, err)
			next(t, other, dir)
			_, err = other.List(t.Context()) // which removes what is no object
			must.NoError(t, err)
			must.NoError(t, other.Close()) // which removes the image of claims
			must.NoError(t, e.left())
		})
		if t.Failed() || over {
			break
		}
	}
	must.Greater(t, 5, steps)
}

// A node is killed anywhere between a task's creation and its removal. Another one goes on, and the program has run
// once.
func TestKill_OfANodeThatRunsATask(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		spec := func(dir string) *endpoint.Spec {
			s := shell("echo x >> /count/ran; cat /local/f >> /count/ran")
			s.Container.Mounts = []endpoint.ContainerMount{{Type: "bind", Source: dir, Target: "/count"}}
			return s
		}
		run := func(t *testing.T, c *docker.Endpoint, ref endpoint.Ref, dir string) error {
			if err := c.Prepare(t.Context(), ref, spec(dir), func(string) {}); err != nil {
				return err
			}
			if err := c.Put(t.Context(), ref, files(t, map[string]string{"local/f": "file\n"})); err != nil {
				return err
			}
			if _, err := c.Start(t.Context(), ref, spec(dir)); err != nil {
				return err
			}
			r, err := c.Watch(t.Context(), ref)
			if err != nil {
				return err
			}
			if r.State != endpoint.Exited || r.Exit.Code != 0 || r.Exit.Lost {
				return fmt.Errorf("%+v %+v", r, r.Exit)
			}
			if err := c.Renew(t.Context(), ref, endpoint.Mutable{Told: true}); err != nil {
				return err
			}
			return c.Remove(t.Context(), ref)
		}
		ran := func(t *testing.T, dir string) string {
			b, err := os.ReadFile(filepath.Join(dir, "ran"))
			must.NoError(t, err)
			return string(b)
		}
		var r *endpoint.Record
		crash(t, e, func(t *testing.T, c *docker.Endpoint, dir string) error {
			r = object(t, e)
			if err := c.Create(t.Context(), r); err != nil {
				return err
			}
			return run(t, c, endpoint.Ref{Name: r.Name, Epoch: 1}, dir)
		}, func(t *testing.T, c *docker.Endpoint, dir string) {
			seen, err := c.Get(t.Context(), r.Name)
			switch {
			case errors.Is(err, endpoint.ErrGone) && ran(t, dir) != "":
			case errors.Is(err, endpoint.ErrGone):
				must.NoError(t, c.Create(t.Context(), r))
				must.NoError(t, run(t, c, endpoint.Ref{Name: r.Name, Epoch: 1}, dir))
			default:
				must.NoError(t, err)
				seen, err = c.Take(t.Context(), seen.Ref(), owner("b"))
				must.NoError(t, err)
				if seen.State == endpoint.Starting {
					must.NoError(t, run(t, c, seen.Ref(), dir))
				} else {
					seen, err = c.Watch(t.Context(), seen.Ref())
					must.NoError(t, err)
					must.True(t, seen.Told || seen.Exit.Code == 0 && !seen.Exit.Lost, must.Sprintf("%+v", seen.Exit))
					must.NoError(t, c.Remove(t.Context(), seen.Ref()))
				}
			}
			must.Eq(t, "x\nfile\n", ran(t, dir))
		})
	})
}

// A node is killed while it gives a task up, or takes it over. Another one takes it over, with what was written.
func TestKill_OfANodeThatHandsOver(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		var r *endpoint.Record
		mark := endpoint.LogMark{Place: endpoint.Place{File: 1, Offset: 2}, Alloc: "a"}
		crash(t, e, func(t *testing.T, c *docker.Endpoint, _ string) error {
			healthy := e.connect(t)
			r = start(t, healthy, object(t, e), shell("exec sleep 1000"))
			must.NoError(t, healthy.Renew(t.Context(), r.Ref(), endpoint.Mutable{
				Logs: map[string]endpoint.LogMark{"stdout": mark},
			}))
			if err := c.Release(t.Context(), r.Ref(), endpoint.Mutable{}, "drained"); err != nil {
				return err
			}
			seen, err := c.Get(t.Context(), r.Name)
			if err != nil {
				return err
			}
			_, err = c.Take(t.Context(), seen.Ref(), owner("b"))
			return err
		}, func(t *testing.T, c *docker.Endpoint, _ string) {
			seen, err := c.Get(t.Context(), r.Name)
			must.NoError(t, err)
			seen, err = c.Take(t.Context(), seen.Ref(), owner("c"))
			must.NoError(t, err)
			must.Eq(t, r.PID, seen.PID)
			must.Eq(t, endpoint.Running, seen.State)
			must.Eq(t, mark, seen.Logs["stdout"])
			must.ErrorIs(t, c.Renew(t.Context(), r.Ref(), endpoint.Mutable{}), endpoint.ErrEpoch)
			_, err = c.Stop(t.Context(), seen.Ref(), "SIGKILL", 0, "over")
			must.NoError(t, err)
			must.NoError(t, c.Remove(t.Context(), seen.Ref()))
		})
	})
}
