// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package histories

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// history is every call of every node that has to do with the ownership of an object, in the
// order of a counter: within a bubble of synctest calls take no time.
type history struct {
	mu    sync.Mutex
	clock int64
	ops   []porcupine.Operation
	refs  []endpoint.Ref // of all who became owners
}

func (h *history) now() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	return h.clock
}

// input is a call. Ref is what its caller knew.
type input struct {
	method string
	ref    endpoint.Ref
	owner  string // the TaskID of the new owner: of Create and Take
}

// changesOwner reports whether a call may change the owner or the epoch.
func (i input) changesOwner() bool {
	return slices.Contains([]string{"Create", "Take", "Release", "Remove"}, i.method)
}

// output is what a call returned.
type output struct {
	result string // "ok", "exists", "gone", "epoch" or "unknown"
	record bool   // epoch and owner are those of a record that was returned
	epoch  uint64
	owner  string
}

// add records a call that has returned. late tells that one without an answer may have its
// effect after that.
func (h *history) add(node int, call int64, in input, r *endpoint.Record, err error) {
	out := output{result: "ok"}
	switch {
	case errors.Is(err, endpoint.ErrExists):
		out.result = "exists"
	case errors.Is(err, endpoint.ErrGone):
		out.result = "gone"
	case errors.Is(err, endpoint.ErrEpoch):
		out.result = "epoch"
	case err != nil:
		out.result = "unknown"
	case r != nil:
		out.record, out.epoch, out.owner = true, r.Epoch, r.Owner.TaskID
	}
	back := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case out.result == "ok" && in.method == "Create":
		h.refs = append(h.refs, endpoint.Ref{Name: in.ref.Name, Epoch: 1, Start: in.owner})
	case out.result == "ok" && in.method == "Take":
		h.refs = append(h.refs, r.Ref())
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: node, Input: in, Call: call, Output: out, Return: back})
}

// superseded are those of h.refs that were followed by a later epoch.
func (h *history) superseded() (old []endpoint.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, ref := range h.refs {
		if slices.ContainsFunc(h.refs[i+1:], func(next endpoint.Ref) bool {
			return next.Name == ref.Name && next.Epoch > ref.Epoch
		}) {
			old = append(old, ref)
		}
	}
	return old
}

// recorder is an endpoint whose calls are recorded.
type recorder struct {
	endpoint.Endpoint
	h    *history
	node int
}

func (c *recorder) note(in input, call func() (*endpoint.Record, error)) (*endpoint.Record, error) {
	begun := c.h.now()
	r, err := call()
	c.h.add(c.node, begun, in, r, err)
	return r, err
}

func (c *recorder) noteError(in input, call func() error) error {
	_, err := c.note(in, func() (*endpoint.Record, error) { return nil, call() })
	return err
}

func (c *recorder) Get(ctx context.Context, name string) (*endpoint.Record, error) {
	return c.note(input{method: "Get", ref: endpoint.Ref{Name: name}},
		func() (*endpoint.Record, error) { return c.Endpoint.Get(ctx, name) })
}

func (c *recorder) Create(ctx context.Context, r *endpoint.Record) error {
	return c.noteError(input{method: "Create", ref: r.Ref(), owner: r.Owner.TaskID},
		func() error { return c.Endpoint.Create(ctx, r) })
}

func (c *recorder) Take(ctx context.Context, ref endpoint.Ref, o endpoint.Owner) (*endpoint.Record, error) {
	return c.note(input{method: "Take", ref: ref, owner: o.TaskID},
		func() (*endpoint.Record, error) { return c.Endpoint.Take(ctx, ref, o) })
}

func (c *recorder) Put(ctx context.Context, ref endpoint.Ref, files io.Reader) error {
	return c.noteError(input{method: "Put", ref: ref}, func() error { return c.Endpoint.Put(ctx, ref, files) })
}

func (c *recorder) Start(ctx context.Context, ref endpoint.Ref, s *endpoint.Spec) (*endpoint.Record, error) {
	return c.note(input{method: "Start", ref: ref},
		func() (*endpoint.Record, error) { return c.Endpoint.Start(ctx, ref, s) })
}

func (c *recorder) Renew(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable) error {
	return c.noteError(input{method: "Renew", ref: ref}, func() error { return c.Endpoint.Renew(ctx, ref, m) })
}

func (c *recorder) Release(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable, reason string) error {
	return c.noteError(input{method: "Release", ref: ref},
		func() error { return c.Endpoint.Release(ctx, ref, m, reason) })
}

func (c *recorder) Stop(
	ctx context.Context, ref endpoint.Ref, signal string, grace time.Duration, reason string,
) (*endpoint.Record, error) {
	return c.note(input{method: "Stop", ref: ref},
		func() (*endpoint.Record, error) { return c.Endpoint.Stop(ctx, ref, signal, grace, reason) })
}

func (c *recorder) Remove(ctx context.Context, ref endpoint.Ref) error {
	return c.noteError(input{method: "Remove", ref: ref}, func() error { return c.Endpoint.Remove(ctx, ref) })
}

// held is an object in the model; the zero value is none.
type held struct {
	epoch uint64
	owner string
}

// model is what ownership is to be like: a register for each name, changed by compare-and-set.
var model = porcupine.NondeterministicModel{
	Init: func() []any { return []any{held{}} },
	Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
		index := map[string]int{}
		for _, op := range all {
			name := op.Input.(input).ref.Name
			i, ok := index[name]
			if !ok {
				i = len(parts)
				index[name] = i
				parts = append(parts, nil)
			}
			parts[i] = append(parts[i], op)
		}
		return parts
	},
	Step: func(state, in, out any) []any {
		var next []any
		for _, s := range after(state.(held), in.(input), out.(output)) {
			next = append(next, s)
		}
		return next
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string {
		i, o := in.(input), out.(output)
		return fmt.Sprintf("%s(%d %s -> %s) = %s %d", i.method, i.ref.Epoch, i.ref.Start, i.owner, o.result, o.epoch)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}

// after are the states that may follow when a call returned this.
func after(s held, in input, out output) []held {
	there := s.epoch != 0
	same := there && s.epoch == in.ref.Epoch && s.owner == in.ref.Start
	var done []held // the states if it had its effect, none if it can't have had
	switch in.method {
	case "Get":
		if there {
			done = []held{s}
		}
	case "Create":
		if !there {
			done = []held{{1, in.owner}}
		}
	case "Take":
		if same {
			done = []held{{s.epoch + 1, in.owner}}
		}
	case "Release":
		if same {
			done = []held{s, {s.epoch + 1, s.owner}}
		}
	case "Remove":
		if same || !there {
			done = []held{{}}
		}
	default:
		if same {
			done = []held{s}
		}
	}
	switch out.result {
	case "unknown":
		return append(done, s)
	case "exists":
		if there {
			return []held{s}
		}
		return nil
	case "gone":
		if !there {
			return []held{s}
		}
		return nil
	case "epoch":
		if there && !same {
			return []held{s}
		}
		return nil
	}
	if out.record {
		for _, d := range done {
			if d == (held{out.epoch, out.owner}) {
				return []held{d}
			}
		}
		return nil
	}
	return done
}
