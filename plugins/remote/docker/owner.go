// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Get is part of endpoint.Endpoint.
func (e *Endpoint) Get(ctx context.Context, name string) (*endpoint.Record, error) {
	v, err := e.look(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(v.damaged) > 0 {
		return &endpoint.Record{
			Name: name, State: endpoint.Damaged, Reason: "the labels of a container can't be read: " + v.damaged[0],
		}, nil
	}
	if v.top == nil {
		return nil, endpoint.ErrGone
	}
	return e.record(v), nil
}

// own looks at an object that a call with this ref wants to change.
func (e *Endpoint) own(ctx context.Context, ref endpoint.Ref) (*view, error) {
	for try := 0; ; try++ {
		v, err := e.look(ctx, ref.Name)
		if err != nil {
			return nil, err
		}
		e.mu.Lock()
		known := e.owned[ref.Name]
		if known != nil && known.claim.Is(ref) && (v.top == nil || !v.bare && !v.top.Is(ref)) {
			delete(e.owned, ref.Name)
			known = nil
		}
		e.mu.Unlock()
		switch {
		case len(v.damaged) > 0:
			return nil, fmt.Errorf("container %.12s of %s has labels that can't be read", v.damaged[0], ref.Name)
		case v.top == nil:
			return nil, endpoint.ErrGone
		case !v.bare && v.top.Is(ref):
			return v, nil
		case !v.bare || try > 3:
			return nil, endpoint.ErrEpoch
		case known != nil && slices.ContainsFunc(v.claims, func(c *claim) bool { return c.id == known.claim.id }):
			err = e.write(ctx, &known.claim, known.file) // its volumes alone were removed
		case known != nil && known.claim.Is(ref):
			err = e.restore(ctx, &known.claim, known.file, v)
		case v.top.Is(ref):
			err = e.restore(ctx, v.top, v.file, v)
		default:
			return nil, endpoint.ErrEpoch
		}
		if err != nil {
			return nil, err
		}
	}
}

// restore makes a claim again that somebody has removed, with all others of the object.
func (e *Endpoint) restore(ctx context.Context, old *claim, f file, v *view) error {
	c := *old
	c.Prev, f.Claim, f.Seq = v.box.id, "", 0
	if err := e.create(ctx, &c); cerrdefs.IsConflict(err) {
		return nil // another has
	} else if err != nil {
		return failed("create a claim", err)
	}
	return e.write(ctx, &c, f)
}

// forget drops what this process knows of an object that is not its own any more.
func (e *Endpoint) forget(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.owned, name)
	delete(e.bare, name)
}

// Create is part of endpoint.Endpoint.
func (e *Endpoint) Create(ctx context.Context, r *endpoint.Record) error {
	ctx, end, err := e.begin(ctx, r.Name)
	if err != nil {
		return err
	}
	defer end()
	v, err := e.look(ctx, r.Name)
	if err != nil {
		return err
	}
	if v.top != nil {
		if v.top.Epoch == 1 && v.top.Owner == r.Owner && v.box == nil {
			return nil // an answer to this call that did not arrive
		}
		return endpoint.ErrExists
	}
	if err := e.clear(ctx, v); err != nil { // what no claim counts for
		return err
	}
	c := &claim{Record: *r, TTL: e.lease}
	c.Epoch, c.State, c.Mutable, c.Created = 1, endpoint.Starting, endpoint.Mutable{}, e.clock.now()
	if err := e.create(ctx, c); cerrdefs.IsConflict(err) {
		return endpoint.ErrExists
	} else if err != nil {
		return failed("create a claim", err)
	}
	// a second may have been created, taken over and so removed since the look
	if v, err = e.look(ctx, r.Name); err != nil {
		return err
	}
	if v.top == nil || v.top.id != c.id {
		return errors.Join(endpoint.ErrExists, e.remove(ctx, c.id))
	}
	e.change(c, func(*owned) {})
	return nil
}

// Take is part of endpoint.Endpoint.
func (e *Endpoint) Take(ctx context.Context, ref endpoint.Ref, o endpoint.Owner) (*endpoint.Record, error) {
	ctx, end, err := e.begin(ctx, ref.Name)
	if err != nil {
		return nil, err
	}
	defer end()
	v, err := e.look(ctx, ref.Name)
	if err != nil {
		return nil, err
	}
	if v.top != nil && v.top.Epoch > ref.Epoch && v.top.Owner == o && !v.top.GivenUp {
		return e.settle(ctx, v.top) // the answer to this call did not arrive
	}
	if v.top == nil {
		return nil, endpoint.ErrGone
	}
	if !v.top.Is(ref) {
		return nil, endpoint.ErrEpoch
	}
	next := e.next(v)
	next.Owner, next.TTL, next.GivenUp = o, e.lease, false
	next.Reason = fmt.Sprintf("taken over by allocation %.8s", o.Alloc)
	if next.State == endpoint.Released {
		next.State = endpoint.Running
	}
	return e.follow(ctx, next)
}

// Release is part of endpoint.Endpoint.
func (e *Endpoint) Release(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable, reason string) error {
	ctx, end, err := e.begin(ctx, ref.Name)
	if err != nil {
		return err
	}
	defer end()
	v, err := e.look(ctx, ref.Name)
	if err != nil {
		return err
	}
	if was := (endpoint.Ref{Name: ref.Name, Epoch: ref.Epoch + 1, Start: ref.Start}); v.top != nil && v.top.GivenUp &&
		v.top.Is(was) {
		_, err := e.settle(ctx, v.top) // the answer to this call did not arrive: only the owner of ref gives up so
		return err
	}
	if v.top != nil && v.top.Is(ref) && e.record(v).State == endpoint.Exited { // its exit is to be told
		return fmt.Errorf("failed to release object in state %s", endpoint.Exited)
	}
	if v, err = e.renew(ctx, ref, m); err != nil {
		return err
	}
	next := e.next(v)
	next.Reason, next.GivenUp = reason, true
	if next.State == endpoint.Running {
		next.State = endpoint.Released
	}
	if _, err = e.follow(ctx, next); err == nil {
		e.forget(ref.Name)
	}
	return err
}

// bareEpochs is more than an object has had owners: the epoch of one without claims is that of its start.
const bareEpochs = 1_000_000

// next is the claim after that of v, as v is.
func (e *Endpoint) next(v *view) *claim {
	c := &claim{Record: *e.record(v), TTL: v.top.TTL, Prev: v.top.id}
	c.Epoch++
	if v.bare {
		c.Epoch += bareEpochs
	}
	// what is the container's, or the file's
	c.Mutable, c.Exit, c.PID, c.Ports, c.More, c.Lease, c.Age = endpoint.Mutable{}, nil, 0, nil, nil, 0, 0
	return c
}

// follow makes a claim that follows another one.
func (e *Endpoint) follow(ctx context.Context, c *claim) (*endpoint.Record, error) {
	for try := 0; ; try++ {
		err := e.create(ctx, c)
		if err == nil {
			return e.settle(ctx, c)
		}
		if !cerrdefs.IsConflict(err) {
			return nil, failed("create a claim", err)
		}
		v, lerr := e.look(ctx, c.Name)
		if lerr != nil {
			return nil, lerr
		}
		if v.top == nil || v.top.id != c.Prev {
			return nil, endpoint.ErrEpoch
		}
		for _, other := range v.claims { // one that never counted
			if other.Epoch > v.top.Epoch {
				if err := e.remove(ctx, other.id); err != nil {
					return nil, err
				}
			}
		}
		// A name is taken some time before its container is listed, or before it is free again because that failed.
		select {
		case <-ctx.Done():
			return nil, failed("create a claim", err)
		case <-time.After(min(time.Duration(try)*20*time.Millisecond, time.Second)):
		}
	}
}

// settle makes sure that a claim counts, takes over what the owner before has written, and removes the claims before.
func (e *Endpoint) settle(ctx context.Context, c *claim) (*endpoint.Record, error) {
	v, err := e.look(ctx, c.Name)
	if err != nil {
		return nil, err
	}
	if v.top == nil || v.top.id != c.id {
		err := endpoint.ErrEpoch
		if v.top == nil {
			err = endpoint.ErrGone
		}
		return nil, errors.Join(err, e.remove(ctx, c.id))
	}
	if v.file.Claim != c.id {
		f := v.file
		f.Ran, f.Reason = e.ran(v), ""
		if err := e.write(ctx, v.top, f); err != nil {
			return nil, err
		}
		v.file = e.mine(v.top).file
	}
	for _, old := range v.claims {
		if old.Epoch < c.Epoch {
			if err := e.remove(ctx, old.id); err != nil {
				return nil, err
			}
		}
	}
	if err := e.dropFiles(ctx, c.Name, c); err != nil {
		return nil, err
	}
	return e.record(v), nil
}

// Renew is part of endpoint.Endpoint.
func (e *Endpoint) Renew(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable) error {
	ctx, end, err := e.begin(ctx, ref.Name)
	if err != nil {
		return err
	}
	defer end()
	_, err = e.renew(ctx, ref, m)
	return err
}

func (e *Endpoint) renew(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable) (*view, error) {
	v, err := e.own(ctx, ref)
	if err != nil {
		return nil, err
	}
	f := v.file
	f.Ran = e.ran(v)
	f.Told, f.Files = f.Told || m.Told, cmp.Or(m.Files, f.Files)
	if len(m.Logs) > 0 {
		f.Logs = maps.Clone(f.Logs)
		if f.Logs == nil {
			f.Logs = map[string]endpoint.LogMark{}
		}
		maps.Copy(f.Logs, m.Logs)
	}
	// An owner of an older epoch writes for its own claim, which does not count.
	if err := e.write(ctx, v.top, f); err != nil {
		return nil, err
	}
	v.file = e.mine(v.top).file
	return v, nil
}

// Remove is part of endpoint.Endpoint.
func (e *Endpoint) Remove(ctx context.Context, ref endpoint.Ref) error {
	ctx, end, err := e.begin(ctx, ref.Name)
	if err != nil {
		return err
	}
	defer end()
	if ref.Epoch == 0 {
		return e.removeDamaged(ctx, ref.Name)
	}
	v, err := e.own(ctx, ref)
	if errors.Is(err, endpoint.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	if v.box.running() {
		return fmt.Errorf("%s runs: it has to be stopped before it is removed", ref.Name)
	}
	if err := e.clear(ctx, v); err != nil {
		return err
	}
	e.forget(ref.Name)
	return nil
}

// removeDamaged removes a damaged object, whatever runs of it.
func (e *Endpoint) removeDamaged(ctx context.Context, name string) error {
	v, err := e.look(ctx, name)
	if err != nil {
		return err
	}
	if len(v.damaged) == 0 && v.top != nil {
		return endpoint.ErrEpoch // it can be looked at now
	}
	for _, id := range v.damaged {
		if err := e.remove(ctx, id); err != nil {
			return err
		}
	}
	if v.box.running() {
		if err := e.kill(ctx, v.box.id, "SIGKILL"); err != nil {
			return err
		}
		if _, err := e.ended(ctx, endpoint.Ref{Name: name}, v.box.id, killTime); err != nil && unreached(err) {
			return err
		}
	}
	return e.clear(ctx, v)
}

// clear removes everything of an object that does not run: the claim that counts is the last.
func (e *Endpoint) clear(ctx context.Context, v *view) error {
	if v.box != nil {
		if err := e.remove(ctx, v.box.id); err != nil {
			return err
		}
	}
	for _, c := range v.claims {
		if err := e.remove(ctx, c.id); err != nil {
			return err
		}
	}
	if len(v.claims) == 0 {
		return nil
	}
	return e.dropFiles(ctx, v.claims[0].Name, nil) // the last: List finds these
}

// remove removes a container that does not run, and its anonymous volumes.
func (e *Endpoint) remove(ctx context.Context, id string) error {
	_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{RemoveVolumes: true})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return failed("remove a container", err)
}
