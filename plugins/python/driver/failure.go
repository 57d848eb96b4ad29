// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/outrider-dev/outrider/plugins/python/install"
)

// startError is the error that Nomad shows. It is recoverable where a later start, or one on another node, may succeed;
// Nomad looks for that in the error itself and not in what it wraps (plugins/drivers/server.go). ctx is the plugin's
// own, which ends with it.
func startError(ctx context.Context, err error, limit time.Duration) error {
	temporary := false
	var may interface{ Temporary() bool }
	if errors.As(err, &may) {
		temporary = may.Temporary()
	}
	late := fmt.Errorf("failed to build the environment within %s (build_timeout)", limit)
	var failed *install.Error
	switch {
	case errors.As(err, &failed) && failed.Cause == install.TimedOut && ctx.Err() == nil:
		err = fmt.Errorf("%w%s", late, failed.LastLines())
	case failed != nil:
		err = fmt.Errorf("failed to build the environment: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		err = late
	}
	if temporary {
		return structs.NewRecoverableError(err, true)
	}
	return err
}
