// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/plugins/python/install"
)

// installerFinder finds the installer of the node, one search at a time for all that wait for it. It is safe for
// concurrent use.
type installerFinder struct {
	find   func(context.Context) (install.Installer, error)
	logger hclog.Logger

	searching chan struct{} // a semaphore
	last      atomic.Pointer[search]
	warned    string // guarded by searching
}

// search is the result of a search, and what was known before where that still holds.
type search struct {
	installer install.Installer // the zero value is none
	found     time.Time         // when that was
	err       error
}

func newInstallerFinder(
	logger hclog.Logger, find func(context.Context) (install.Installer, error),
) *installerFinder {
	f := &installerFinder{find: find, logger: logger, searching: make(chan struct{}, 1)}
	f.last.Store(&search{})
	return f
}

// get returns the installer that builds environments. It waits only where none is known.
func (f *installerFinder) get(ctx context.Context) (install.Installer, error) {
	return f.ask(ctx, false)
}

// renew is get, and searches again from time to time, since one may be installed while the agent runs. Call it
// periodically. An installer that does not answer then stays the known one, and is asked again by the next call.
func (f *installerFinder) renew(ctx context.Context) (install.Installer, error) {
	return f.ask(ctx, true)
}

func (f *installerFinder) ask(ctx context.Context, again bool) (install.Installer, error) {
	const every = 10 * time.Minute
	before := f.last.Load()
	known := before.installer.Path != ""
	if known && (!again || time.Since(before.found) < every) {
		return before.installer, nil
	}
	select {
	case f.searching <- struct{}{}:
	default:
		if known {
			return before.installer, nil
		}
		select {
		case f.searching <- struct{}{}:
		case <-ctx.Done():
			return before.installer, ctx.Err()
		}
	}
	defer func() { <-f.searching }()
	now := f.last.Load()
	if now == before { // otherwise another search has just ended
		i, err := f.find(ctx)
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) { // it did not end
			return i, err
		}
		now = f.learn(before, i, err)
		f.last.Store(now)
	}
	return now.installer, now.err
}

// learn is the result of a search.
func (f *installerFinder) learn(before *search, i install.Installer, err error) *search {
	var notKnown *install.NotKnownError
	switch {
	case err == nil:
		f.warn(nil)
		return &search{installer: i, found: time.Now()}
	case errors.As(err, &notKnown) && before.installer.Path != "":
		f.warn(err)
		return &search{installer: before.installer, found: before.found}
	}
	f.warn(err)
	return &search{err: err}
}

// warn logs once why nothing can be built.
func (f *installerFinder) warn(why error) {
	words := ""
	if why != nil {
		words = why.Error()
	}
	if words != "" && words != f.warned {
		f.logger.Warn("uv can't be used", "reason", words)
	}
	f.warned = words
}
