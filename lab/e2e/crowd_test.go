// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// small lets many tasks fit on a small node.
func small(count int) func(*api.Job, *api.Task) {
	return func(j *api.Job, task *api.Task) {
		j.TaskGroups[0].Count = &count
		task.Resources = &api.Resources{CPU: new(5), MemoryMB: new(10)}
	}
}

// maxThreads is far from one a task. Go keeps those that it once needed at a time.
const maxThreads = 25

func TestCrowd_HasOnePluginAndOneSupervisor(t *testing.T) {
	testsupport.Long(t, "a crowd of tasks")
	t.Parallel()
	n := newNode(t, nodeOptions{})
	n.submit(t, job(t, conf{"command": "/bin/true"}, small(1))).ended(t)
	supervisor, plugin := n.supervisor(t), n.plugin(t)
	testsupport.Within(t, time.Minute, n.tasksLeft)
	before := map[string]int{"supervisor": descriptors(supervisor.pid), "plugin": descriptors(plugin.pid)}

	const crowd = 50
	j := job(t, conf{"command": "/bin/sleep", "args": []string{"600"}}, small(crowd))
	n.submit(t, j)
	testsupport.Within(t, 2*time.Minute, func() error { return n.countRunning(*j.ID, crowd) })
	want := fmt.Sprint(map[string]int{"agent": 1, "collector": 1, "plugin": 1, "supervisor": 1, "task": crowd})
	testsupport.Within(t, time.Minute, func() error { // there may be one that somebody has started for a moment
		kinds := map[string]int{}
		for _, p := range n.processes() {
			switch {
			case n.isAgent(p):
				kinds["agent"]++
			case n.isPlugin(p):
				kinds["plugin"]++
			case n.isSupervisor(p):
				kinds["supervisor"]++
			case n.isCollector(p):
				kinds["collector"]++
			case len(p.args) == 2 && strings.HasSuffix(p.args[0], "sleep"):
				kinds["task"]++
				if p.parent != supervisor.pid {
					return fmt.Errorf("task %d is a child of %d, not of the supervisor", p.pid, p.parent)
				}
			default:
				return fmt.Errorf("process %d %q is one too many", p.pid, p.args)
			}
		}
		if fmt.Sprint(kinds) != want {
			return fmt.Errorf("got %v, want %v", kinds, want)
		}
		return nil
	})
	got := threads(supervisor.pid)
	test.False(t, got > maxThreads, test.Sprintf("the supervisor has %d threads for %d tasks", got, crowd))
	n.Client().Jobs().Deregister(*j.ID, false, nil)
	testsupport.Within(t, 2*time.Minute, n.tasksLeft)

	testsupport.Within(t, time.Minute, n.tasksLeft)
	now := n.supervisor(t)
	test.Eq(t, supervisor.pid, now.pid, test.Sprintf("the supervisor is %d, it was", now.pid))
	now = n.plugin(t)
	test.Eq(t, plugin.pid, now.pid, test.Sprintf("the plugin is %d, it was", now.pid))
	for name, pid := range map[string]int{"supervisor": supervisor.pid, "plugin": plugin.pid} {
		testsupport.Within(t, time.Minute, func() error {
			if now := descriptors(pid); now > before[name] {
				return fmt.Errorf("the %s has %d open files, it had %d before", name, now, before[name])
			}
			return nil
		})
	}
	if got := threads(supervisor.pid); got > maxThreads {
		t.Errorf("the supervisor has %d threads after %d tasks", got, crowd)
	} else {
		t.Logf("the supervisor has %d threads after %d tasks", got, crowd)
	}
}
