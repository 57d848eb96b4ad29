// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestOOM_IsTheReportedExitOnlyIfTheTaskFailed(t *testing.T) {
	a := start(t, nil)
	if a.share == "" {
		t.Skip("no memory cgroup can be used: " + a.cgroup.Missing)
	}
	events := listen(t, a)
	file := filepath.Join(t.TempDir(), "again")
	const child, main = "OOM: a process of the task was killed at 30 MiB of memory", "OOM: killed at 30 MiB of memory"
	// a child is killed but the task succeeds; the next run fails without a kill
	cfg := a.shell("[ ! -e "+file+" ] || exit 1; tail /dev/zero; exit 0", "", func(c *drivers.TaskConfig) {
		c.Resources.NomadResources.Memory.MemoryMB = 30
	})
	again := *cfg
	a.run(cfg)
	r := a.wait(cfg.ID)
	must.False(t, r.OOMKilled, must.Sprintf("exit 0: got %+v", r))
	test.Eq(t, 0, r.ExitCode, test.Sprintf("exit 0: got %+v", r))
	testsupport.Eventually(t, "the kill is reported", func() bool { return events.heard(cfg.ID, child) > 0 })
	a.destroy(cfg.ID)
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	again.ID = again.AllocID + "/web/" + uuid.Short()
	a.run(&again)
	r = a.wait(again.ID)
	must.False(t, r.OOMKilled, must.Sprintf("after an earlier run's kill: got %+v", r))
	test.Eq(t, 1, r.ExitCode, test.Sprintf("after an earlier run's kill: got %+v", r))
	a.destroy(again.ID)
	// events are delivered in order: once the event of a later task is heard, all events of the others have arrived
	last := a.shell("kill -HUP $$", "")
	a.run(last)
	a.wait(last.ID)
	testsupport.Eventually(t, "a later event is heard",
		func() bool { return events.heard(last.ID, "Killed by signal 1 (SIGHUP)") == 1 })
	a.destroy(last.ID)
	n := events.heard(cfg.ID, child)
	test.Eq(t, 1, n, test.Sprintf("one kill is reported %d times", n))
	for _, id := range []string{cfg.ID, again.ID} {
		if events.heard(id, main) > 0 || id == again.ID && events.heard(id, child) > 0 {
			t.Errorf("reported as OOM: %s", id)
		}
	}
}

// The kill is caused by the limit of the parent cgroup, so the event must not blame the task's own limit.
func TestOOM_NamesTheExceededLimit(t *testing.T) {
	a := start(t, nil)
	if a.share == "" {
		t.Skip("no memory cgroup can be used: " + a.cgroup.Missing)
	}
	events := listen(t, a)
	file := filepath.Join(t.TempDir(), "go")
	cfg := a.shell("while ! [ -e "+file+" ]; do sleep 0.1; done; tail /dev/zero", "", func(c *drivers.TaskConfig) {
		c.Resources.NomadResources.Memory.MemoryMB = 1000
	})
	a.run(cfg)
	parent, name := a.share, "memory.max"
	if a.cgroup.Mode == cgroup.V1 {
		group := cgroup.Plan(a.cgroup, a.share, cfg.AllocID, cfg.Name)
		parent, name = filepath.Dir(group.V1["memory"]), "memory.limit_in_bytes"
	}
	must.NoError(t, os.WriteFile(filepath.Join(parent, name), []byte("64M"), 0))
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	r := a.wait(cfg.ID)
	must.True(t, r.OOMKilled)
	testsupport.Eventually(t, "the kill is reported", func() bool {
		return events.heard(cfg.ID, "OOM: killed because the host or a parent cgroup is out of memory: "+
			"the task was below its own limit of 1000 MiB") == 1
	})
	a.destroy(cfg.ID)
}

func TestLocalTask_ReportsAnOOMKillOnce(t *testing.T) {
	told := 0
	lt := &localTask{state: &task.State{OOMKills: 2}, event: func(string, ...any) { told++ }}
	for _, c := range []struct {
		kills uint64
		told  int
	}{{0, 0}, {2, 0}, {3, 1}, {3, 1}, {2, 1}, {3, 1}, {5, 2}, {5, 2}} {
		lt.reportOOM(c.kills)
		if told != c.told {
			t.Errorf("at %d kills: told %d times, want %d", c.kills, told, c.told)
		}
	}
}

// An exit may arrive before the reply to the launch, and so before the OOM kills of earlier runs are known.
func TestLocalTask_ReportsNoOOMKillOfEarlierRuns(t *testing.T) {
	lt := &localTask{state: &task.State{}, event: func(format string, _ ...any) { t.Errorf("got %q", format) }}
	lt.exited(&task.Exit{OOMKills: 2})
	lt.watch(&task.State{OOMKills: 2})
}
