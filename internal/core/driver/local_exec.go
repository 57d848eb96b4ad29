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
	over, stop := context.WithCancel(ctx)
	defer stop()
	e, err := session.Run(ctx, t.client, t.id, &session.Options{
		Command: o.Command, TTY: o.Tty, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Resize: sizes(over, o.ResizeCh),
	})
	if errors.Is(err, supervisor.ErrEnded) {
		return nil, fmt.Errorf("task %q does not run any more", t.current().Task)
	}
	return e, err
}

// sizes passes window sizes on until the context ends.
func sizes(ctx context.Context, from <-chan drivers.TerminalSize) <-chan session.Size {
	if from == nil {
		return nil
	}
	to := make(chan session.Size)
	go func() {
		defer close(to)
		for {
			select {
			case size, ok := <-from:
				if !ok {
					return
				}
				select {
				case to <- session.Size{Width: size.Width, Height: size.Height}:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return to
}
