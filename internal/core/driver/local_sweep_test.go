// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestSweep_RemovesAbandonedTasks(t *testing.T) {
	a := start(t, nil)
	given, known := a.shell("exit 3", ""), a.shell("exit 3", "")
	running, unclaimed := a.shell("exec sleep 1000", ""), a.shell("exec sleep 1000", "")
	a.run(given)
	a.wait(given.ID)
	a.restart() // the new process does not know this task
	a.run(known)
	a.wait(known.ID)
	a.run(running)
	_, err := a.driver.WaitTask(t.Context(), running.ID)
	must.NoError(t, err)
	a.run(unclaimed) // as if the agent was killed, and the job was stopped
	silent := a.shell("exec sleep 1000", "", func(c *drivers.TaskConfig) {
		c.StdoutPath, c.StderrPath = os.DevNull, os.DevNull // logs { disabled = true }
	})
	a.run(silent)
	kept := func(id string) bool {
		return testsupport.Exists(task.Store{Dir: filepath.Join(a.state, "test-driver", a.node)}.TaskDir(id))
	}
	sweep := func() {
		a.driver.local.swept = time.Time{}
		_, _, err := a.driver.probe(t.Context())
		must.NoError(t, err)
	}
	sweep()
	must.True(t, kept(given.ID), must.Sprint("removed although its allocation exists"))
	test.True(t, kept(unclaimed.ID), test.Sprint("removed although its allocation exists"))
	for _, dir := range []string{given.AllocDir, known.AllocDir, running.AllocDir, unclaimed.AllocDir,
		silent.AllocDir} {
		must.NoError(t, os.Rename(dir, dir+".gone"))
		defer os.Rename(dir+".gone", dir)
	}
	sweep()
	must.False(t, kept(given.ID), must.Sprint("kept although its allocation is gone"))
	test.False(t, kept(unclaimed.ID), test.Sprint("kept although its allocation is gone"))
	test.False(t, kept(silent.ID), test.Sprint("kept although its allocation is gone"))
	must.True(t, kept(known.ID), must.Sprint("a known task was removed"))
	test.True(t, kept(running.ID), test.Sprint("a known task was removed"))
	test.SliceLen(t, 2, a.known(), test.Sprint("tasks of the driver"))
	a.destroy(known.ID)
	a.destroy(running.ID)
}
