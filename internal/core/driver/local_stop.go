// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// defaultSignal stops a task whose job has no kill_signal, as in Nomad's own process drivers.
const defaultSignal = unix.SIGINT

// Stop is part of Stopper.
func (t *localTask) Stop(ctx context.Context, timeout time.Duration, signal string) error {
	sig := defaultSignal
	if signal != "" {
		var err error
		if sig, err = task.ParseSignal(signal); err != nil {
			// an error would only make Nomad retry
			sig = defaultSignal
			t.event("stopped with %s: %v", unix.SignalName(sig), err)
		}
	}
	if _, err := t.client.Exited(t.id); err != nil {
		return nil // destroyed: no supervisor is started for it
	}
	err := t.signal(ctx, sig, t.killMode)
	if err != nil && !errors.Is(err, supervisor.ErrEnded) && !errors.Is(err, supervisor.ErrUnknownTask) {
		t.engine.logger.Warn("failed to signal task", "task", t.id, "error", err)
	}
	_ = t.signal(ctx, unix.SIGCONT, t.killMode) // a stopped process handles the signal only when it continues
	deadline := time.Now().Add(timeout)
	var late, left bool
	select {
	case <-t.Ended():
		left = t.waitForTree(deadline)
	case <-time.After(timeout):
		late = true
	}
	if err := t.client.Kill(ctx, t.id); err != nil && !errors.Is(err, supervisor.ErrUnknownTask) {
		return fmt.Errorf("failed to kill task: %w", err)
	}
	e := t.Exit()
	switch {
	case late && e != nil && e.Signal == int(unix.SIGKILL): // it did not end by itself at the last moment
		t.event("kill_timeout of %v passed: the task was killed", timeout)
	case left:
		t.event("kill_timeout of %v passed: the remaining processes of the task were killed", timeout)
	}
	return nil
}

// waitForTree waits until the deadline for the signaled processes other than the main one to end,
// and reports whether any is left.
func (t *localTask) waitForTree(deadline time.Time) (left bool) {
	st := t.current()
	for left = st.SignalledLeft(t.killMode); left && time.Now().Before(deadline); left = st.SignalledLeft(t.killMode) {
		time.Sleep(10 * time.Millisecond)
	}
	return left
}
