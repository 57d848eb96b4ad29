// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package poll

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"
)

func TestUntil_PollsUntilDoneOrFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("failure")
		for _, want := range []error{nil, failure} {
			start, asked := time.Now(), 0
			err := Until(t.Context(), time.Minute, func() (bool, error) {
				if asked++; asked < 3 {
					return false, nil
				}
				return want == nil, want
			})
			must.Eq(t, want, err)
			must.Eq(t, 2*time.Minute, time.Since(start))
		}
	})
}

func TestUntil_EndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		start := time.Now()
		err := Until(ctx, time.Minute, func() (bool, error) { return false, nil })
		must.ErrorIs(t, err, context.DeadlineExceeded)
		must.Eq(t, 90*time.Second, time.Since(start))
	})
}
