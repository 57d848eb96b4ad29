// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

var _ driver.Executor = (*remoteTask)(nil)

// Exec is part of driver.Executor. Files that a template changed are copied first: the command may be
// that template's change_script.
func (t *remoteTask) Exec(ctx context.Context, o *drivers.ExecOptions) (*task.Exit, error) {
	ref, foreign := t.owned()
	if foreign {
		return nil, fmt.Errorf("failed to run command: %w", endpoint.ErrEpoch)
	}
	pctx, pcancel := context.WithTimeout(ctx, callTime) // the next copy, such as before a release, waits for this one
	if err := t.putChanged(pctx, ref); err != nil {
		t.event("The task's changed files could not be copied: %v", err)
	}
	pcancel()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := &endpoint.ExecOptions{Command: o.Command, TTY: o.Tty, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr}
	if o.Tty && o.ResizeCh != nil {
		sizes := make(chan endpoint.WindowSize)
		e.Resize = sizes
		go func() {
			for {
				select {
				case size, ok := <-o.ResizeCh:
					if !ok {
						return
					}
					select {
					case sizes <- endpoint.WindowSize{Width: size.Width, Height: size.Height}:
					case <-ctx.Done():
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	exit, err := t.ep.Exec(ctx, ref, e)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, ctx.Err()
	case errors.Is(err, endpoint.ErrGone):
		return nil, fmt.Errorf("task %q does not run any more", t.saved.Key.Task)
	case err != nil:
		return nil, briefError{err}
	}
	return exit, nil
}
