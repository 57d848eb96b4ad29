// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

const (
	// unplugEvery is the interval at which the devices of a running task are checked.
	unplugEvery = time.Second

	// unplugKill is the kill timeout of a task that is stopped because its device was unplugged.
	unplugKill = 5 * time.Second
)

// unplug controls what happens to a task whose device is unplugged. Nomad stores it, so fields are only ever added.
type unplug struct {
	Stop  bool          `json:"stop,omitempty"`
	Delay time.Duration `json:"delay,omitempty"` // how long the device must be missing before the task is stopped
}

// watchDevices emits events when devices that were reserved for the task are unplugged or plugged in again, and stops
// the task if its options require that. (A device plugin can't do this, because it has no access to tasks.)
// watchDevices returns when the task or the driver has ended.
func (t *localTask) watchDevices(devices []task.Device) {
	again := time.NewTicker(unplugEvery)
	defer again.Stop()
	var before string
	var since time.Time
	for {
		gone := missing(devices)
		switch {
		case gone == before:
		case gone == "":
			t.event("Device: plugged in again (the program must reopen it): %s", before)
		default:
			t.event("Device: unplugged: %s", gone)
		}
		if before == "" {
			since = time.Now()
		}
		before = gone
		if gone != "" && t.unplug.Stop && time.Since(since) >= t.unplug.Delay {
			t.stopForDevice(gone)
			return
		}
		select {
		case <-again.C:
		case <-t.Ended():
			return
		case <-t.engine.ctx.Done():
			return
		}
	}
}

// missing lists the devices whose nodes do not exist on the host, by their paths in the task. A device with several
// paths is listed once.
func missing(devices []task.Device) string {
	var gone []string
	seen := map[string]bool{}
	for _, d := range devices {
		_, err := os.Lstat(d.HostPath)
		if errors.Is(err, fs.ErrNotExist) && !seen[d.HostPath] {
			gone = append(gone, d.TaskPath)
		}
		seen[d.HostPath] = true
	}
	return strings.Join(gone, ", ")
}

// stopForDevice stops the task. The task then counts as failed, whatever its exit code is.
func (t *localTask) stopForDevice(gone string) {
	reason := fmt.Sprintf("stopped because its device was unplugged for %s: %s", t.unplug.Delay, gone)
	t.mu.Lock()
	t.failure = reason
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.engine.ctx, time.Minute)
	defer cancel()
	err := t.Stop(ctx, unplugKill, "")
	if err != nil {
		t.event("Failed to stop the task after its device was unplugged: %v", err)
	}
}
