package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// TaskEvents is part of drivers.DriverPlugin.
func (d *Driver) TaskEvents(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	return d.eventer.TaskEvents(ctx)
}

// event shows a sentence among the task's events.
func (d *Driver) event(cfg *drivers.TaskConfig, format string, args ...any) {
	err := d.eventer.EmitEvent(&drivers.TaskEvent{
		TaskID: cfg.ID, TaskName: cfg.Name, AllocID: cfg.AllocID, Timestamp: time.Now(),
		Message: fmt.Sprintf(format, args...),
	})
	if err != nil {
		d.logger.Warn("failed to emit task event", "task", cfg.ID, "error", err)
	}
}

func (d *Driver) supervisorEvent(e supervisor.Event) {
	if h, err := d.handle(e.ID); err == nil {
		d.event(h.config, "%s", e.Message)
	}
}

// taskExited says what the exit code alone does not.
func (d *Driver) taskExited(id string, e *task.Exit) {
	h, err := d.handle(id)
	if err != nil {
		return
	}
	switch {
	case e.Lost:
		d.event(h.config, "Lost: it is not known how the task ended: %s", e.Reason)
	case e.OOMKilled:
		if limit := h.state.Limits.MemoryMax; limit > 0 {
			d.event(h.config, "OOM: killed at %d MiB of memory", limit>>20)
		} else {
			d.event(h.config, "OOM: killed since the host is out of memory")
		}
	case e.Signal != 0:
		d.event(h.config, "Killed by signal %d (%s)", e.Signal, unix.SignalName(unix.Signal(e.Signal)))
	}
}
