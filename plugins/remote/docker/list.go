// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// listers is how many objects List looks at at a time.
const listers = 4

// List is part of endpoint.Endpoint.
func (e *Endpoint) List(ctx context.Context) ([]*endpoint.Record, error) {
	files, err := e.volumes(ctx, labelPlugin+"="+labelValue)
	if err != nil {
		return nil, err
	}
	all, err := e.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelPlugin+"="+labelValue),
	})
	if err != nil {
		return nil, failed("list containers", err)
	}
	names := map[string]bool{}
	for _, s := range all.Items {
		names[s.Labels[labelObject]] = true
	}
	// files are younger than their claims: these are of objects that are gone, whose removal was not finished, or
	// to which a former owner has written since
	for _, f := range files {
		if !names[f.Labels[labelObject]] {
			if err := e.removeVolume(ctx, f.Name); unreached(err) {
				return nil, err
			} // one that can't be removed keeps nobody from a start
		}
	}
	if len(all.Items) == 0 && !e.claimed.Load() { // else at Close
		e.removeImage(ctx)
	}
	var (
		mu      sync.Mutex
		records []*endpoint.Record
		errs    []error
		group   sync.WaitGroup
		free    = make(chan struct{}, listers)
	)
	for name := range names {
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			r, err := e.listed(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if r != nil {
				records = append(records, r)
			} else if err != nil {
				errs = append(errs, err)
			}
		})
	}
	group.Wait()
	return records, errors.Join(errs...)
}

// listTime is how long List looks at an object: less than the engine's prober waits for all.
const listTime = 3 * time.Second

// listed is one object of List, nil if it is none. One that can't be looked at while the engine answers hides no other.
func (e *Endpoint) listed(ctx context.Context, name string) (*endpoint.Record, error) {
	for try := 0; ; try++ {
		asked, cancel := context.WithTimeout(ctx, listTime)
		r, err := e.Get(asked, name)
		if errors.Is(err, endpoint.ErrGone) {
			_ = e.sweep(asked, name) // or the next time
			err = nil
		}
		hangs := asked.Err() != nil
		cancel()
		if err == nil {
			return r, nil
		}
		if unreached(err) {
			asked, cancel := context.WithTimeout(ctx, closeTime)
			_, dead := e.api.Ping(asked, client.PingOptions{})
			cancel()
			if dead != nil {
				return nil, err
			}
			if !hangs && try == 0 { // the connection was cut
				continue
			}
		}
		return &endpoint.Record{
			Name: name, State: endpoint.Damaged, Busy: unreached(err),
			Reason: "the engine answers, but this object could not be looked at: " + err.Error(),
		}, nil
	}
}

// sweepAfter is how old containers of no object have to be: what makes them an object may still come.
const sweepAfter = time.Hour

// sweep removes the containers of a name that is no object: their creator was killed, or came too late.
func (e *Endpoint) sweep(ctx context.Context, name string) error {
	v, err := e.look(ctx, name)
	if err != nil || v.top != nil || len(v.damaged) > 0 {
		return err
	}
	old := e.clock.now().Add(-sweepAfter)
	if v.box != nil && v.box.made.After(old) ||
		slices.ContainsFunc(v.claims, func(c *claim) bool { return c.made.After(old) }) {
		return nil
	}
	return e.clear(ctx, v)
}
