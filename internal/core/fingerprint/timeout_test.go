// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package fingerprint

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test"
)

func TestLoop_HasNoTimeoutUnlessOneIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		values := Loop[string]{Period: time.Hour, Probe: func(ctx context.Context) (string, error) {
			if ctx.Err() != nil {
				return "over", nil
			}
			return "in time", nil
		}}.Run(t.Context())
		test.Eq(t, "in time", next(t, values), test.Sprint("the probe"))
	})
}
