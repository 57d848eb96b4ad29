// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// endCases cover WaitTask, StopTask and DestroyTask.
var endCases = []driverCase{
	{"an exit code is reported unchanged", func(c *check) {
		for _, code := range []int{0, 7, 255} {
			c.startTask(fmt.Sprintf("exit %d", code)).wantExit(code, 0)
		}
	}},
	{"a signal that ended a task is reported", func(c *check) {
		r := c.running(sleeping)
		r.signalAll(syscall.SIGKILL)
		r.wantExit(0, syscall.SIGKILL)
	}},
	{"WaitTask reports an exit (measures the delay)", func(c *check) {
		r := c.running(sleeping)
		ch, err := c.WaitTask(c.ctx, r.cfg.ID)
		c.ok(err, "WaitTask")
		r.signalAll(syscall.SIGKILL)
		began := time.Now()
		receive(c, ch, "exit")
		c.note("%s", time.Since(began).Round(time.Millisecond))
	}},
	{"every call of WaitTask gets the exit, even a later call", func(c *check) {
		r := c.running("echo > ready; while [ ! -e go ]; do sleep 0.05; done; exit 5")
		first, err := c.WaitTask(c.ctx, r.cfg.ID)
		c.ok(err, "WaitTask")
		second, err := c.WaitTask(c.ctx, r.cfg.ID)
		c.ok(err, "WaitTask")
		cancelled, cancel := context.WithCancel(c.ctx)
		_, err = c.WaitTask(cancelled, r.cfg.ID)
		c.ok(err, "WaitTask")
		cancel() // must not end the other waits
		r.end()
		for _, got := range []*drivers.ExitResult{receive(c, first, "exit"), receive(c, second, "exit"), r.wait(), r.wait()} {
			c.wantExit(got, 5, 0)
		}
	}},
	{"WaitTask for an unknown task returns an error", func(c *check) {
		ch, err := c.WaitTask(c.ctx, unknown)
		if err == nil {
			if got := receive(c, ch, "result"); got.Err == nil {
				c.fail("got the exit %s", exit(got))
			}
		}
	}},
	{"StopTask sends the job's signal and returns when the task is dead", func(c *check) {
		r := c.running("trap 'exit 3' USR1; echo > ready; while :; do sleep 0.1; done")
		c.wantExit(r.stop(soon, "SIGUSR1"), 3, 0)
	}},
	{"WaitTask after StopTask gets the exit too", func(c *check) {
		r := c.running("trap 'exit 3' USR1; echo > ready; while :; do sleep 0.1; done")
		c.ok(c.StopTask(r.cfg.ID, soon, "SIGUSR1"), "StopTask")
		r.wantExit(3, 0)
	}},
	{"StopTask without a signal uses the driver's default", func(c *check) {
		r := c.running(sleeping)
		if got := r.stop(500*time.Millisecond, ""); got.Err != nil || got.ExitCode == 0 && got.Signal == 0 {
			c.fail("the exit is %s", exit(got))
		}
	}},
	{"StopTask kills after the timeout, and not before", func(c *check) {
		r := c.running("trap '' INT TERM USR1; echo > ready; while :; do sleep 0.1; done")
		began := time.Now()
		got := r.stop(2*time.Second, "SIGTERM")
		took := time.Since(began)
		if took < 2*time.Second {
			c.fail("the task was killed after %s, want 2 s", took)
		}
		if got.Signal != int(syscall.SIGKILL) { // got.Err is allowed: it may mention the timeout
			c.fail("the exit is %s", exit(got))
		}
		c.note("%s", took.Round(100*time.Millisecond))
	}},
	{"concurrent calls of StopTask succeed", func(c *check) {
		r := c.running(sleeping)
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- c.StopTask(r.cfg.ID, time.Second, "SIGTERM") }()
		}
		c.ok(errors.Join(receive(c, done, "return of StopTask"), receive(c, done, "return of StopTask")), "StopTask")
	}},
	{"StopTask and DestroyTask succeed for ended and unknown tasks", func(c *check) {
		r := c.startTask("exit 0")
		r.wantExit(0, 0)
		c.ok(c.StopTask(r.cfg.ID, time.Second, "SIGTERM"), "StopTask after the exit")
		c.ok(c.DestroyTask(r.cfg.ID, true), "DestroyTask after the exit")
		var failed []string
		for call, err := range map[string]error{
			"a second DestroyTask":                    c.DestroyTask(r.cfg.ID, true),
			"DestroyTask for an unknown task":         c.DestroyTask(unknown, true),
			"StopTask (an agent would retry 5 times)": c.StopTask(unknown, time.Second, "SIGTERM"),
		} {
			if err != nil {
				failed = append(failed, call+": "+err.Error())
			}
		}
		slices.Sort(failed)
		if len(failed) > 0 {
			c.fail("%s", strings.Join(failed, "; "))
		}
	}},
	{"DestroyTask without force does not end a task", func(c *check) {
		r := c.running(sleeping)
		if err := c.DestroyTask(r.cfg.ID, false); err == nil {
			c.fail("DestroyTask succeeded")
		}
		r.wantRunning("DestroyTask")
	}},
	{"DestroyTask with force ends a task", func(c *check) {
		r := c.running("trap '' INT TERM; echo > ready; while :; do sleep 0.1; done")
		r.destroy()
		if _, err := c.InspectTask(r.cfg.ID); err == nil {
			c.fail("the driver still knows the task")
		}
	}},
	{"DestroyTask ends processes that the task has left behind", func(c *check) {
		r := c.startTask(`setsid sh -c 'echo > left; exec sleep 1000' >/dev/null 2>&1 &
			while [ ! -e left ]; do sleep 0.05; done; exit 6`) // by then the child has its own session
		r.wantExit(6, 0)
		r.destroy()
	}},
}

// unknown is the id of a task that no driver knows.
const unknown = "44444444-2222-3333-4444-555555555555/web/12345678"
