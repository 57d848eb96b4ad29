// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

// output returns a task's standard output on the node: the content of its log files, in their order.
func output(t *testing.T, cfg *drivers.TaskConfig) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(cfg.AllocDir, "alloc/logs", cfg.Name+".stdout.*"))
	must.NoError(t, err)
	var all []string
	for _, file := range files { // fewer than ten, so Glob returns them in order
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		all = append(all, string(text))
	}
	return strings.Join(all, "")
}

// After a takeover, a restarted process writes to another directory on the host than the first process. The node must
// get the output of both, in order.
func TestOutput_ContinuesWhenATakenOverTaskRestarts(t *testing.T) {
	t.Parallel()
	server := sshdtest.Start(t)
	dir, mark := newDir(t), newMark(t)
	options := func() map[string]any {
		return map[string]any{"command": "/bin/sh", "args": []any{"-c", "echo started; exec sleep " + mark}}
	}
	first := newPlugin(t, server.Endpoint("box", dir, server.Port), "http://127.0.0.1:1")
	before := newTask(t, "job", options())
	_, _, err := first.StartTask(before.Copy())
	must.NoError(t, err)
	testsupport.WaitSleepers(t, mark, 1)
	must.NoError(t, first.DestroyTask(before.ID, true)) // without an API, this only releases the run

	second := newPlugin(t, server.Endpoint("box", dir, server.Port), "http://127.0.0.1:1")
	task := newTask(t, "job", options())
	for lines := 1; lines <= 3; lines++ {
		_, _, err = second.StartTask(task.Copy())
		must.NoError(t, err)
		result, err := second.WaitTask(t.Context(), task.ID)
		must.NoError(t, err)
		testsupport.Eventually(t, "the output arrives", func() bool {
			return output(t, task) == strings.Repeat("started\n", lines)
		})
		testsupport.WaitSleepers(t, mark, 1)
		for _, pid := range testsupport.Sleepers(mark) {
			must.NoError(t, unix.Kill(pid, unix.SIGKILL))
		}
		must.Eq(t, int(unix.SIGKILL), (<-result).Signal)
		must.NoError(t, second.DestroyTask(task.ID, true))
		task.ID = task.AllocID + "/main/" + uuid.Short()
	}
}
