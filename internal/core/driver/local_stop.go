// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/session"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// defaultSignal stops a task whose job sets no kill_signal. Nomad's own process drivers use the same signal.
const defaultSignal = unix.SIGINT

// Stop is part of Task.
func (t *localTask) Stop(ctx context.Context, timeout time.Duration, signal string) error {
	sig := defaultSignal
	if signal != "" {
		var err error
		if sig, err = task.ParseSignal(signal); err != nil {
			// do not return an error: Nomad would only call StopTask again
			sig = defaultSignal
			t.event("sending %s instead of kill_signal: %v", unix.SignalName(sig), err)
		}
	}
	if _, err := t.client.Exited(t.id); err != nil {
		return nil // the task is already destroyed, and a call would only start a supervisor
	}
	deadline := time.Now().Add(timeout)
	t.runPreStop(ctx, deadline)
	err := t.signal(ctx, sig, t.killMode)
	if err != nil && !errors.Is(err, supervisor.ErrEnded) && !errors.Is(err, supervisor.ErrUnknownTask) {
		t.engine.logger.Warn("failed to signal task", "task", t.id, "error", err)
	}
	_ = t.signal(ctx, unix.SIGCONT, t.killMode) // a stopped process handles sig only when it continues
	var late, left bool
	select {
	case <-t.Ended():
		left = t.waitForTree(deadline)
	case <-time.After(time.Until(deadline)):
		late = true
	}
	if err := t.client.Kill(ctx, t.id); err != nil && !errors.Is(err, supervisor.ErrUnknownTask) {
		return fmt.Errorf("failed to kill task: %w", err)
	}
	e := t.Exit()
	switch {
	case late && e != nil && e.Signal == int(unix.SIGKILL): // otherwise the task ended by itself at the last moment
		t.event("kill_timeout of %v passed: the task was killed", timeout)
	case left:
		t.event("kill_timeout of %v passed: the remaining processes of the task were killed", timeout)
	}
	return nil
}

// runPreStop runs the job's pre_stop in the task, as `nomad alloc exec` would, until the deadline at most.
func (t *localTask) runPreStop(ctx context.Context, deadline time.Time) {
	if len(t.preStop) == 0 {
		return
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	e, err := session.Run(ctx, t.client, t.id, &drivers.ExecOptions{Command: t.preStop})
	switch {
	case errors.Is(err, supervisor.ErrEnded): // the task ended before the kill signal: nothing to report
	case errors.Is(err, context.DeadlineExceeded):
		t.event("pre_stop did not end within kill_timeout")
	case err != nil:
		t.event("pre_stop failed: %v", err)
	case e.Code != 0 || e.Signal != 0 || e.Lost:
		t.event("pre_stop failed: %v", e)
	}
}

// waitForTree waits for the processes that were signaled with the main process, which has ended. It returns at the
// deadline at the latest, and reports whether any such process is left.
func (t *localTask) waitForTree(deadline time.Time) (left bool) {
	st := t.current()
	for left = st.SignalledLeft(t.killMode); left && time.Now().Before(deadline); left = st.SignalledLeft(t.killMode) {
		time.Sleep(10 * time.Millisecond)
	}
	return left
}
