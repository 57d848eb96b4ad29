// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/session"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// Exec is part of Executor.
func (t *localTask) Exec(ctx context.Context, o *drivers.ExecOptions) (*task.Exit, error) {
	e, err := session.Run(ctx, t.client, t.id, o)
	if errors.Is(err, supervisor.ErrEnded) {
		return nil, fmt.Errorf("task %q is no longer running", t.current().Task)
	}
	return e, err
}
