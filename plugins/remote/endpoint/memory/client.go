// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Client is a node's way to a Store.
type Client struct {
	s *Store

	mu    sync.Mutex
	cut   chan struct{} // closed while it is cut off
	fault func(method string) Fault
}

// Fault is what becomes of a call.
type Fault struct {
	Delay   time.Duration // before it arrives
	Request bool          // it never arrives
	Answer  bool          // it has its effect, and the answer is lost
}

var _ endpoint.Endpoint = (*Client)(nil)

// Connect returns another client.
func (s *Store) Connect() *Client { return &Client{s: s, cut: make(chan struct{})} }

// Break has f asked at each call of a method, by its name, for what becomes of it. It may be nil.
func (c *Client) Break(f func(method string) Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

// Cut cuts the client off, or connects it again. Calls under way fail.
func (c *Client) Cut(off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.cut:
		if !off {
			c.cut = make(chan struct{})
		}
	default:
		if off {
			close(c.cut)
		}
	}
}

func (c *Client) off() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *Client) isOff() bool {
	select {
	case <-c.off():
		return true
	default:
		return false
	}
}

var errCut = fmt.Errorf("%w: the link is down", endpoint.ErrUnreachable)

// call runs f under the store's lock, with the faults of a call.
func call[T any](ctx context.Context, c *Client, method string, f func() (T, error)) (v T, err error) {
	var fault Fault
	c.mu.Lock()
	ask := c.fault
	c.mu.Unlock()
	if ask != nil {
		fault = ask(method)
	}
	if fault.Delay > 0 {
		select {
		case <-time.After(fault.Delay):
		case <-c.off():
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return v, fmt.Errorf("%w: %w", endpoint.ErrUnreachable, ctx.Err())
	}
	if c.isOff() || fault.Request {
		return v, errCut
	}
	c.s.mu.Lock()
	v, err = f()
	c.s.mu.Unlock()
	if fault.Answer {
		var none T
		return none, errCut
	}
	return v, err
}

// until waits for a change until f, called under the store's lock, is done.
func until(ctx context.Context, c *Client, f func() (done bool)) error {
	off := c.off()
	for {
		if c.isOff() {
			return errCut
		}
		c.s.mu.Lock()
		changed, done := c.s.changed, f()
		c.s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-off:
			return errCut
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", endpoint.ErrUnreachable, ctx.Err())
		}
	}
}

// Probe is part of endpoint.Endpoint.
func (c *Client) Probe(ctx context.Context) (*endpoint.Facts, error) {
	return call(ctx, c, "Probe", func() (*endpoint.Facts, error) {
		return &endpoint.Facts{Kind: "memory", Arch: "amd64", Address: "192.0.2.1", Limits: "it is none"}, nil
	})
}

// List is part of endpoint.Endpoint.
func (c *Client) List(ctx context.Context) ([]*endpoint.Record, error) {
	return call(ctx, c, "List", func() (list []*endpoint.Record, err error) {
		for _, o := range c.s.objects {
			list = append(list, c.s.read(o))
		}
		return list, nil
	})
}

// Get is part of endpoint.Endpoint.
func (c *Client) Get(ctx context.Context, name string) (*endpoint.Record, error) {
	return call(ctx, c, "Get", func() (*endpoint.Record, error) {
		if o := c.s.objects[name]; o != nil {
			return c.s.read(o), nil
		}
		return nil, endpoint.ErrGone
	})
}

// Create is part of endpoint.Endpoint.
func (c *Client) Create(ctx context.Context, r *endpoint.Record) error {
	_, err := call(ctx, c, "Create", func() (none struct{}, err error) {
		s := c.s
		if s.objects[r.Name] != nil {
			return none, endpoint.ErrExists
		}
		o := &object{record: *r, output: map[string][]byte{}, files: map[string][]byte{}, expires: s.now().Add(s.lease)}
		o.record.Epoch, o.record.State, o.record.Created, o.record.Since = 1, endpoint.Starting, s.now(), s.now()
		s.objects[r.Name] = o
		s.touch()
		return none, nil
	})
	return err
}

// Take is part of endpoint.Endpoint.
func (c *Client) Take(ctx context.Context, ref endpoint.Ref, owner endpoint.Owner) (*endpoint.Record, error) {
	return call(ctx, c, "Take", func() (*endpoint.Record, error) {
		o, err := c.s.find(ref)
		if err != nil {
			return nil, err
		}
		o.record.Epoch++
		o.record.Owner, o.record.GivenUp = owner, false
		if o.record.State == endpoint.Released {
			o.record.State = endpoint.Running
		}
		o.record.Since, o.expires = c.s.now(), c.s.now().Add(c.s.lease)
		c.s.touch()
		return c.s.read(o), nil
	})
}

// Put is part of endpoint.Endpoint.
func (c *Client) Put(ctx context.Context, ref endpoint.Ref, files io.Reader) error {
	put := map[string][]byte{}
	for in := tar.NewReader(files); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("failed to read files: %w", err)
		}
		if put[h.Name], err = io.ReadAll(in); err != nil {
			return fmt.Errorf("failed to read files: %w", err)
		}
	}
	_, err := call(ctx, c, "Put", func() (none struct{}, err error) {
		o, err := c.s.find(ref)
		if err != nil {
			return none, err
		}
		for name, data := range put {
			o.files[name] = data
		}
		return none, nil
	})
	return err
}

// Prepare is part of endpoint.Endpoint.
func (c *Client) Prepare(ctx context.Context, ref endpoint.Ref, _ *endpoint.Spec, progress func(string)) error {
	_, err := call(ctx, c, "Prepare", func() (*object, error) { return c.s.find(ref) })
	if err == nil {
		progress("Prepared " + ref.Name)
	}
	return err
}

// Start is part of endpoint.Endpoint.
func (c *Client) Start(ctx context.Context, ref endpoint.Ref, spec *endpoint.Spec) (*endpoint.Record, error) {
	return call(ctx, c, "Start", func() (*endpoint.Record, error) {
		s := c.s
		o, err := s.find(ref)
		if err != nil {
			return nil, err
		}
		if o.record.State != endpoint.Starting {
			return s.read(o), nil
		}
		if s.Refuse != nil {
			if err := s.Refuse(spec); err != nil {
				return nil, err
			}
		}
		s.pid++
		o.run = &Run{Name: ref.Name, Key: o.record.Key, Owner: o.record.Owner, Spec: spec, From: time.Now()}
		s.runs = append(s.runs, o.run)
		o.record.State, o.record.Since, o.record.Started = endpoint.Running, s.now(), s.now()
		o.record.PID, o.record.Ports = s.pid, spec.Ports
		s.touch()
		return s.read(o), nil
	})
}

// Renew is part of endpoint.Endpoint.
func (c *Client) Renew(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable) error {
	_, err := call(ctx, c, "Renew", func() (none struct{}, err error) {
		o, err := c.s.find(ref)
		if err == nil {
			o.expires = c.s.now().Add(c.s.lease)
			o.store(m)
		}
		return none, err
	})
	return err
}

// Release is part of endpoint.Endpoint.
func (c *Client) Release(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable, reason string) error {
	_, err := call(ctx, c, "Release", func() (none struct{}, err error) {
		o, err := c.s.find(ref)
		if err != nil {
			return none, err
		}
		if o.record.State != endpoint.Running {
			return none, fmt.Errorf("failed to release object in state %s", o.record.State)
		}
		o.store(m)
		if c.s.ReleaseRaises {
			o.record.Epoch++
		}
		o.record.State, o.record.GivenUp, o.record.Reason, o.record.Since = endpoint.Released, true, reason, c.s.now()
		c.s.touch()
		return none, nil
	})
	return err
}

// Signal is part of endpoint.Endpoint.
func (c *Client) Signal(ctx context.Context, ref endpoint.Ref, signal string) error {
	_, err := call(ctx, c, "Signal", func() (none struct{}, err error) {
		o, err := c.s.find(ref)
		if err == nil {
			c.s.signal(o, signal)
		}
		return none, err
	})
	return err
}

// Stop is part of endpoint.Endpoint. It goes no further when its caller does not wait for it.
func (c *Client) Stop(
	ctx context.Context, ref endpoint.Ref, signal string, grace time.Duration, reason string,
) (*endpoint.Record, error) {
	step := func(signal string) (*endpoint.Record, error) {
		return call(ctx, c, "Stop", func() (*endpoint.Record, error) {
			o, err := c.s.find(ref)
			if err != nil {
				return nil, err
			}
			if o.record.State == endpoint.Starting {
				o.record.State, o.record.Exit = endpoint.Exited, &task.Exit{Lost: true, Reason: "it was never started"}
				c.s.touch()
			}
			if o.record.State != endpoint.Exited {
				o.record.Reason = reason
			}
			c.s.signal(o, signal)
			return c.s.read(o), nil
		})
	}
	r, err := step(signal)
	if err != nil || r.State == endpoint.Exited {
		return r, err
	}
	wait, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	err = until(wait, c, func() bool {
		o, ferr := c.s.find(ref)
		return ferr != nil || o.record.State == endpoint.Exited
	})
	if err != nil && (wait.Err() == nil || ctx.Err() != nil) {
		return nil, err
	}
	return step("SIGKILL")
}

// Remove is part of endpoint.Endpoint.
func (c *Client) Remove(ctx context.Context, ref endpoint.Ref) error {
	_, err := call(ctx, c, "Remove", func() (none struct{}, err error) {
		o, err := c.s.find(ref)
		switch {
		case errors.Is(err, endpoint.ErrGone):
			return none, nil
		case err != nil:
			return none, err
		case o.record.State == endpoint.Running, o.record.State == endpoint.Released:
			return none, fmt.Errorf("failed to remove object in state %s", o.record.State)
		}
		delete(c.s.objects, ref.Name)
		c.s.touch()
		return none, nil
	})
	return err
}

// Watch is part of endpoint.Endpoint.
func (c *Client) Watch(ctx context.Context, ref endpoint.Ref) (r *endpoint.Record, err error) {
	if _, err := call(ctx, c, "Watch", func() (none struct{}, err error) { return }); err != nil {
		return nil, err
	}
	werr := until(ctx, c, func() bool {
		o := c.s.objects[ref.Name]
		if o == nil {
			err = endpoint.ErrGone
			return true
		}
		r = c.s.read(o)
		return r.State == endpoint.Exited || !r.Is(ref)
	})
	if werr != nil {
		return nil, werr
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Logs is part of endpoint.Endpoint.
func (c *Client) Logs(
	ctx context.Context, name, stream string, from endpoint.Place, skip int64,
) (endpoint.LogReader, error) {
	ctx, cancel := context.WithCancel(ctx)
	l := &logs{c: c, ctx: ctx, cancel: cancel, name: name, stream: stream, at: from.Offset + skip}
	if _, err := c.Get(ctx, name); err != nil {
		cancel()
		return nil, err
	}
	return l, nil
}

type logs struct {
	c            *Client
	ctx          context.Context
	cancel       func()
	name, stream string
	at           int64
}

// Next is part of endpoint.LogReader.
func (l *logs) Next() (chunk endpoint.Chunk, err error) {
	werr := until(l.ctx, l.c, func() bool {
		o := l.c.s.objects[l.name]
		if o == nil {
			err = endpoint.ErrGone
			return true
		}
		out := o.output[l.stream]
		if int64(len(out)) > l.at {
			chunk.Data = append(chunk.Data, out[l.at:min(int64(len(out)), l.at+32<<10)]...)
			return true
		}
		if o.record.State == endpoint.Exited {
			err = io.EOF
			return true
		}
		return false
	})
	if werr != nil {
		return chunk, werr
	}
	l.at += int64(len(chunk.Data))
	chunk.End = endpoint.Place{Offset: l.at}
	return chunk, err
}

// Close is part of endpoint.LogReader.
func (l *logs) Close() error {
	l.cancel()
	return nil
}

// Stats is part of endpoint.Endpoint.
func (c *Client) Stats(ctx context.Context, name string) (*endpoint.Usage, error) {
	return call(ctx, c, "Stats", func() (*endpoint.Usage, error) {
		o := c.s.objects[name]
		if o == nil || o.record.State != endpoint.Running && o.record.State != endpoint.Released {
			return nil, endpoint.ErrGone
		}
		return &endpoint.Usage{
			At: c.s.now().UnixNano(), CPU: c.s.now().Sub(o.record.Started).Seconds() / 2, UserCPU: -1, SystemCPU: -1,
			Memory: 10 << 20, RSS: 8 << 20, Cache: -1, Swap: -1, MaxMemory: 12 << 20, Throttled: -1, ThrottleNS: -1,
			Processes: 1,
		}, nil
	})
}

// Exec is part of endpoint.Endpoint: the command echoes its input.
func (c *Client) Exec(ctx context.Context, ref endpoint.Ref, o *endpoint.ExecOptions) (*task.Exit, error) {
	if _, err := call(ctx, c, "Exec", func() (*object, error) { return c.s.find(ref) }); err != nil {
		return nil, err
	}
	if o.Stdin != nil && o.Stdout != nil {
		if _, err := io.Copy(o.Stdout, o.Stdin); err != nil {
			return nil, fmt.Errorf("failed to copy: %w", err)
		}
	}
	return &task.Exit{}, nil
}

// Close is part of endpoint.Endpoint.
func (c *Client) Close() error { return nil }
