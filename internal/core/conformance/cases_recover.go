// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"syscall"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// recoverCases cover the recovery of tasks after a restart. An agent that restarts also kills its plugins, so the
// driver's state must outlive the driver.
var recoverCases = []driverCase{
	{"RecoverTask succeeds for a known task", func(c *check) {
		r := c.running(waiting)
		r.recover()
		r.end()
		r.wantExit(7, 0)
	}},
	{"a task outlives a plugin that is killed, and is recovered", func(c *check) {
		r := c.running(waiting)
		c.restart()
		r.wantRunning("the restart")
		r.recover()
		st, err := c.InspectTask(r.cfg.ID)
		c.ok(err, "InspectTask")
		if st.State != drivers.TaskStateRunning {
			c.fail("a running task is %s", st.State)
		}
		r.end()
		r.wantExit(7, 0)
		c.until("output written after the restart arrives", func() bool { return r.output("stdout") == "over\n" })
	}},
	{"a task outlives a plugin that shuts down cleanly", func(c *check) {
		r := c.running(waiting)
		c.shutdown()
		c.ok(c.start(), "starting the plugin again")
		r.recover()
		r.end()
		r.wantExit(7, 0)
	}},
	{"an agent re-attaches to a running plugin", func(c *check) {
		r := c.running(waiting)
		config, _ := c.instance.ReattachConfig()
		instance, err := c.catalog.Reattach(c.info.Name, base.PluginTypeDriver, config)
		c.ok(err, "re-attaching")
		c.use(instance) // an agent does not call SetConfig again
		c.cleanup(func() { c.shutdown(); _ = c.start() })
		r.recover()
		r.end()
		r.wantExit(7, 0)
	}},
	{"an exit while no plugin runs is reported correctly", func(c *check) {
		r := c.running(waiting)
		c.kill()
		r.end()
		r.c.until("the task ends", func() bool { return len(r.pids()) == 0 })
		c.ok(c.start(), "starting the plugin again")
		r.recover()
		r.wantExit(7, 0)
	}},
	{"a death by signal while no plugin runs is reported correctly", func(c *check) {
		r := c.running(waiting)
		c.kill()
		r.signalAll(syscall.SIGKILL)
		r.c.until("the task ends", func() bool { return len(r.pids()) == 0 })
		c.ok(c.start(), "starting the plugin again")
		r.recover()
		r.wantExit(0, syscall.SIGKILL)
	}},
	{"a restart in place is not mistaken for the previous run", func(c *check) {
		r := c.startTask("if [ -e again ]; then echo > ready; exec sleep 1000; fi; echo > again; exit 9")
		r.wantExit(9, 0)
		r.destroy()
		r.cfg.ID += "-2" // a new id for the same task, in the same directories
		r.collect()
		r.start()
		r.ready()
		c.restart()
		r.recover()
		r.wantRunning("RecoverTask")
		if st, err := c.InspectTask(r.cfg.ID); err != nil || st.State != drivers.TaskStateRunning {
			c.fail("the task is running, but is reported as %+v, %v", st, err)
		}
	}},
	{"a recovered task can be stopped", func(c *check) {
		r := c.running("trap 'exit 3' TERM; echo > ready; while :; do sleep 0.1; done")
		c.restart()
		r.recover()
		c.wantExit(r.stop(soon, "SIGTERM"), 3, 0)
	}},
	{"a recovered task can be destroyed", func(c *check) {
		r := c.running(sleeping)
		c.restart()
		r.recover()
		r.destroy()
	}},
	{"a task that was not recovered can be destroyed", func(c *check) {
		r := c.running(sleeping)
		c.restart()
		r.destroy()
	}},
	{"no exit is invented for a task whose state is gone", func(c *check) {
		r := c.running(sleeping)
		r.destroy()
		c.restart()
		if c.RecoverTask(r.handle) != nil {
			return
		}
		if got := r.wait(); got.Err == nil && got.ExitCode == 0 && got.Signal == 0 {
			c.fail("the task is reported as successful")
		}
	}},
	{"an unreadable handle returns an error", func(c *check) {
		r := c.newRun("exit 0")
		for _, state := range [][]byte{nil, []byte("\xc1 no state"), []byte(`{"`)} {
			handle := drivers.NewTaskHandle(1)
			handle.Config, handle.State, handle.DriverState = r.cfg, drivers.TaskStateRunning, state
			if c.RecoverTask(handle) == nil {
				if got := r.wait(); got.Err == nil && got.ExitCode == 0 && got.Signal == 0 {
					c.fail("a task with the state %q is recovered as successful", state)
				}
				_ = c.DestroyTask(r.cfg.ID, true)
			}
		}
	}},
}
