// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

func list(ctx context.Context, ep endpoint.Endpoint) (all []*endpoint.Record, err error) {
	err = limited(ctx, callTime, func(ctx context.Context) (err error) {
		all, err = ep.List(ctx)
		return err
	})
	return all, err
}

func take(ctx context.Context, ep endpoint.Endpoint, ref endpoint.Ref, o endpoint.Owner) (*endpoint.Record, error) {
	var r *endpoint.Record
	err := limited(ctx, callTime, func(ctx context.Context) (err error) {
		r, err = ep.Take(ctx, ref, o)
		return err
	})
	return r, err
}

// limited makes a call that has this time. An endpoint may be connected and not answer, such as one whose disk hangs.
func limited(ctx context.Context, d time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return call(ctx)
}

// retried makes a call up to three times while the endpoint can't be reached, or has to prepare the object again.
func retried[T any](ctx context.Context, call func(context.Context) (T, error)) (v T, err error) {
	for try := 1; ; try++ {
		v, err = call(ctx)
		passing := errors.Is(err, endpoint.ErrUnreachable) || errors.Is(err, endpoint.ErrUnprepared)
		if !passing || try == 3 || sleep(ctx, time.Duration(try)*300*time.Millisecond) != nil {
			return v, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
