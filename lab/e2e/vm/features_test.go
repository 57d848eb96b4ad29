// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/features"
)

// TestFeatures_WorkOnCgroupV2 runs a job for each feature, and one without it.
func TestFeatures_WorkOnCgroupV2(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel()
	h := newHost(t)
	h.boot()
	h.shell("touch " + strings.Join(features.Files, " "))
	c := h.runAgent(map[string]agent.Plugin{
		"exec-lite": {Config: "state_dir = \"${state_dir}\"\n" + features.Plugin},
	})
	for i, f := range features.All {
		with := script(fmt.Sprint("with-", i), f.Script)
		task := with.TaskGroups[0].Tasks[0]
		for name, value := range f.Config {
			task.SetConfig(name, value)
		}
		if f.Edit != nil {
			f.Edit(with, task)
		}
		h.prints(c, with, f.Name, f.Want)
		if f.Host != "" {
			h.prints(c, script(fmt.Sprint("without-", i), f.Script), "without "+f.Name, f.Host)
		}
	}
	h.run(nil, h.ctl, "close", agentDir)
}

// script returns a job that runs lines of shell.
func script(id, lines string) *api.Job {
	task := api.NewTask("main", "exec-lite").SetConfig("command", "/bin/sh").
		SetConfig("args", []string{"-c", lines + "\nexit 0"})
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	task.Require(&api.Resources{CPU: new(20), MemoryMB: new(32)})
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	return api.NewBatchJob(id, id, "global", 50).AddTaskGroup(group)
}

// prints runs a job, and checks what it prints.
func (h *host) prints(c *api.Client, job *api.Job, name, want string) {
	h.t.Helper()
	id := runs(h.t, c, job, api.AllocClientStatusComplete)
	test.NoError(h.t, testsupport.Poll(5*time.Minute, func() error {
		if got := h.output(id); got != want {
			return fmt.Errorf("%s: the task has printed %q, want %q", name, got, want)
		}
		return nil
	}))
}
