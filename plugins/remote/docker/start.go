// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// A program is started at most once, because each owner starts a container of its own. Prepare replaces
// the container of an earlier owner, so a late start by that owner finds no container. If that start
// comes before the replacement, the container runs and can't be removed: then it was the start.
// An owner does not start a container twice either, since an engine runs a program again that has ended.

// Prepare is part of endpoint.Endpoint.
func (e *Endpoint) Prepare(ctx context.Context, ref endpoint.Ref, s *endpoint.Spec, progress func(string)) error {
	if s.Container == nil {
		return fmt.Errorf("%s runs containers: an image is missing", e.kind())
	}
	v, err := e.own(ctx, ref)
	if err != nil || v.box.ran() {
		return err
	}
	if err := e.ensureImage(ctx, s.Container, progress); err != nil {
		return err
	}
	ctx, end, err := e.begin(ctx, ref.Name)
	if err != nil {
		return err
	}
	defer end()
	for try := 0; ; try++ {
		v, err := e.own(ctx, ref)
		if err != nil || v.box.ran() {
			return err
		}
		if v.file.Stopped {
			return fmt.Errorf("%s was stopped before it was started", ref.Name)
		}
		if v.box != nil {
			if err = e.remove(ctx, v.box.id); err != nil && try < 3 {
				continue // it may run by now: look again
			}
		}
		if err == nil {
			err = e.createBox(ctx, v.top, s, progress)
		}
		// a conflict: an earlier owner has created one, who still owned the object when it checked
		if !cerrdefs.IsConflict(err) || try == 3 {
			return failed("create the container", err)
		}
	}
}

// Start is part of endpoint.Endpoint.
func (e *Endpoint) Start(ctx context.Context, ref endpoint.Ref, _ *endpoint.Spec) (*endpoint.Record, error) {
	ctx, end, err := e.begin(ctx, ref.Name)
	if err != nil {
		return nil, err
	}
	defer end()
	v, err := e.own(ctx, ref)
	if err != nil {
		return nil, err
	}
	if v.box.ran() || v.file.Stopped {
		return e.record(v), nil
	}
	if v.box == nil || !v.box.under.Is(ref) {
		return nil, endpoint.ErrUnprepared
	}
	if o := e.mine(v.top); o == nil || o.put != v.box.id {
		if err := e.put(ctx, ref, v, strings.NewReader("")); err != nil {
			return nil, err
		}
	}
	// an engine locks a container until its program runs, so that nobody can renew the lease meanwhile
	if e.clock.age(v.file.at) > v.top.TTL/6 {
		if v, err = e.renew(ctx, ref, endpoint.Mutable{}); err != nil {
			return nil, err
		}
	}
	first, err := e.mark(ctx, v)
	if err != nil {
		return nil, err
	}
	if !first {
		return e.started(ctx, ref)
	}
	_, err = e.api.ContainerStart(ctx, v.box.id, client.ContainerStartOptions{})
	if err = failed("start the container", err); err != nil {
		if unreached(err) {
			return nil, err
		}
		// Podman keeps a port of it open (4.3.1), and says so only at the next start
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
		defer cancel()
		_ = e.remove(ctx, v.box.id)
		return nil, err
	}
	e.change(v.top, func(o *owned) { o.ran = true })
	if v, err = e.own(ctx, ref); err != nil { // another owner may have taken it meanwhile
		return nil, err
	}
	return e.record(v), nil
}

// mark tells whether this is the first call to start a container: an engine makes a volume of a name once, and tells
// each caller what it was made with.
func (e *Endpoint) mark(ctx context.Context, v *view) (bool, error) {
	nonce := rand.Text()
	r, err := e.api.VolumeCreate(ctx, client.VolumeCreateOptions{
		Name:   fmt.Sprintf("%sstart-%.16s", filesOf(v.top), v.box.id),
		Labels: map[string]string{labelPlugin: labelValue, labelObject: v.top.Name, labelNonce: nonce},
	})
	if err != nil {
		return false, failed("mark the start", err)
	}
	return r.Volume.Labels[labelNonce] == nonce, nil
}

// startTime is how long another's start of a container is waited for, who may be gone.
const startTime = 30 * time.Second

// started waits for a start that another call has begun.
func (e *Endpoint) started(ctx context.Context, ref endpoint.Ref) (*endpoint.Record, error) {
	for over := time.Now().Add(startTime); time.Now().Before(over); time.Sleep(50 * time.Millisecond) {
		v, err := e.own(ctx, ref)
		if err != nil {
			return nil, err
		}
		if v.box == nil {
			break // it failed
		}
		if v.box.ran() {
			return e.record(v), nil
		}
	}
	return nil, endpoint.ErrUnprepared
}
