// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// clock is a time that a change of the host's time does not move: nanoseconds since boot. In
// another boot the time of day has to do.
type clock struct {
	Boot  string    `json:"boot"`
	Nanos int64     `json:"nanos"`
	Day   time.Time `json:"day"`
}

func bootNanos() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return ts.Nano()
}

func clockIn(d time.Duration) clock {
	return clock{Boot: task.BootID(), Nanos: bootNanos() + int64(d), Day: time.Now().Add(d)}
}

func (c clock) left() time.Duration {
	if c.Boot != task.BootID() {
		return min(time.Until(c.Day), -1) // who rebooted has renewed nothing
	}
	return time.Duration(c.Nanos - bootNanos())
}
