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
	// unplugEvery is how often the devices of a running task are looked for.
	unplugEvery = time.Second

	// unplugKill is how long a task that is stopped for its device has to end.
	unplugKill = 5 * time.Second
)

// unplug is what happens to a task whose device is unplugged. Fields are only ever added.
type unplug struct {
	Stop  bool          `json:"stop,omitempty"`
	Delay time.Duration `json:"delay,omitempty"` // for which the device is gone
}

// watchDevices reports to the task's author when devices that were reserved for the task are unplugged, and when they
// are back: a device plugin can't (it knows no task). It stops the task if that was asked for. It returns when the
// task has ended, or the driver.
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
			t.event("Device: plugged in again, the program has to open it again: %s", before)
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

// missing lists, by their paths in the task, the devices whose nodes on the host are not there. One that has several
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

// stopForDevice stops the task, which has failed then, whatever its program returns.
func (t *localTask) stopForDevice(gone string) {
	reason := fmt.Sprintf("stopped since its device was unplugged for %s: %s", t.unplug.Delay, gone)
	t.mu.Lock()
	t.failure = reason
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.engine.ctx, time.Minute)
	defer cancel()
	err := t.Stop(ctx, unplugKill, "")
	if err != nil {
		t.event("The task can't be stopped though its device was unplugged: %v", err)
	}
}
