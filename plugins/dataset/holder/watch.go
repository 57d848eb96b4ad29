// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package holder

import (
	"context"
	"errors"
	"time"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"

	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

const (
	// blocked is how long a request waits for a change.
	blocked = time.Minute

	// pause is between two answers, where each has all allocations of the node.
	pause = 200 * time.Millisecond

	// The waits after a request that failed.
	firstWait = time.Second
	lastWait  = time.Minute
)

// Watcher follows the allocations of this node that have devices of one type.
type Watcher struct {
	API
	Type string

	// Seen gets each view, and Failed the reason when there is none. They are called by the
	// goroutine that watches.
	Seen   func(context.Context, *View)
	Failed func(error)

	kick   fingerprint.Kicker
	client *client // while it watches
}

// New makes a watcher.
func New(a API, kind string) *Watcher {
	return &Watcher{API: a, Type: kind, kick: fingerprint.NewKicker()}
}

// Look asks for a view that begins now.
func (w *Watcher) Look() { w.kick.Kick() }

// Gone reports whether there is evidence that an allocation, which was seen before, does not
// exist any longer. Only Seen may call it.
func (w *Watcher) Gone(ctx context.Context, id, namespace string) (bool, error) {
	if !policy.IsID(id) {
		return false, nil
	}
	return w.client.gone(ctx, id, namespace)
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := w.watch(ctx, func() { wait = firstWait })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.Failed(err)
		if err := pauseFor(ctx, firstWait); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.kick: // the next view begins after it
		case <-time.After(wait - firstWait):
		}
	}
}

// watch returns the first error. It calls works after each view.
func (w *Watcher) watch(ctx context.Context, works func()) (err error) {
	if w.client, err = w.connect(); err != nil {
		return err
	}
	defer w.client.CloseIdleConnections()
	node, err := w.client.node(ctx)
	if err != nil {
		return err
	}
	for index := ""; ; {
		var view *View
		view, index, err = w.next(ctx, node, index)
		if err != nil {
			return err
		}
		if view != nil {
			works()
			w.Seen(ctx, view)
			if err := pauseFor(ctx, pause); err != nil {
				return err
			}
		}
	}
}

// errKicked ends a request because a newer view is wanted.
var errKicked = errors.New("a newer view is wanted")

// next returns the next view, and none if it was kicked, and the index to go on from.
func (w *Watcher) next(ctx context.Context, node, index string) (*View, string, error) {
	limited, cancel := context.WithCancelCause(ctx)
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		if index == "" {
			return // it does not wait
		}
		select {
		case <-w.kick:
			cancel(errKicked)
		case <-done:
		}
	}()
	view, next, err := w.client.view(limited, node, w.Type, index)
	close(done)
	<-over
	kicked := errors.Is(context.Cause(limited), errKicked)
	cancel(nil)
	switch {
	case kicked:
		return nil, "", nil
	case err != nil:
		return nil, "", err
	}
	return view, next, nil
}

func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
