// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// exited reports details of a task's exit that the exit code does not show. Only the first call for a task has an
// effect. The returned channel is closed when the driver has also explained the exit (ExitReporter).
func (d *Driver) exited(h *handle) (explained <-chan struct{}) {
	h.exitSeen.Do(func() {
		e := h.task.Exit()
		d.logger.Debug("task has ended", "task", h.config.ID, "exit", e)
		switch {
		case e == nil, h.stopOver() != nil && (e.Lost || e.Signal != 0):
			// Nomad's own event is sufficient
		case e.Lost:
			d.event(h, "Lost: the exit status of the task is unknown: %s", e.Reason)
		case e.Signal != 0 && !e.OOMKilled:
			d.event(h, "Killed by signal %d (%s)", e.Signal, unix.SignalName(unix.Signal(e.Signal)))
		}
		go func() { // in a goroutine, because the driver may read files
			defer close(h.explained)
			d.explain(h, e)
		}()
	})
	return h.explained
}

func (d *Driver) explain(h *handle, e *task.Exit) {
	i, ok := optional[ExitReporter](d)
	if !ok || e == nil {
		return
	}
	if message := i.ReportExit(Ended{Run: h.run(), Exit: e, Stopped: h.stopOver() != nil}); message != "" {
		d.event(h, "%s", message)
	}
}

// explainTime limits how long an exit waits for the driver to explain it.
const explainTime = 10 * time.Second

func (d *Driver) waitExplained(ctx context.Context, h *handle, explained <-chan struct{}) {
	select {
	case <-explained:
	case <-time.After(explainTime):
		d.logger.Warn("the driver's explanation takes too long: reporting the exit without it", "task", h.config.ID)
	case <-ctx.Done():
	}
}
