// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package poll waits for conditions that can only be polled.
package poll

import (
	"context"
	"time"
)

// Until calls done immediately and then after each interval, until done returns true or an error. Until returns done's
// error, or ctx's error if ctx ends first.
func Until(ctx context.Context, interval time.Duration, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := Sleep(ctx, interval); err != nil {
			return err
		}
	}
}

// Sleep waits for a duration. If ctx ends first, Sleep returns ctx's error.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
