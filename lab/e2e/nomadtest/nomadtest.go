// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package nomadtest has helpers for tests with a Nomad agent, on this machine or in a virtual one.
package nomadtest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Job returns a batch job with one small task of a driver, which is not restarted.
func Job(id, driver string, config map[string]any) (*api.Job, *api.Task) {
	task := api.NewTask("main", driver).Require(&api.Resources{CPU: new(20), MemoryMB: new(32)})
	for name, value := range config {
		task.SetConfig(name, value)
	}
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail"), Interval: new(time.Minute),
		Delay: new(50 * time.Millisecond)}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	return api.NewBatchJob(id, id, "global", 50).AddTaskGroup(group), task
}

// Shell returns the configuration of a task that runs a script.
func Shell(script string) map[string]any {
	return map[string]any{"command": "/bin/sh", "args": []string{"-c", script}}
}

// Allocs waits until a job has at least count allocations.
func Allocs(t testing.TB, c *api.Client, job string, count int) (list []*api.AllocationListStub) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() (err error) {
		list, _, err = c.Jobs().Allocations(job, false, nil)
		if err == nil && len(list) < count {
			err = fmt.Errorf("job %s has %d allocations, want %d", job, len(list), count)
		}
		return err
	})
	return list
}

// Story returns a task's events as one line.
func Story(st *api.TaskState) string {
	var events []string
	for _, e := range st.Events {
		events = append(events, e.Type+": "+e.DisplayMessage)
	}
	return strings.Join(events, " | ")
}

// Offers waits until a server's only node has exactly this many devices of a type, all healthy, and returns their IDs,
// sorted. An agent updates its server 5 to 10 s after a change.
func Offers(t testing.TB, c *api.Client, kind string, want int) (ids []string) {
	t.Helper()
	testsupport.Within(t, 5*time.Minute, func() error {
		ids = nil
		node, err := Node(c)
		if err != nil {
			return err
		}
		all := Devices(node, kind)
		for _, d := range all {
			if d.Healthy {
				ids = append(ids, d.ID)
			}
		}
		if len(ids) != want || len(all) != want {
			return fmt.Errorf("the server has %v", all)
		}
		return nil
	})
	return ids
}

// Node returns a server's only node.
func Node(c *api.Client) (*api.Node, error) {
	list, _, err := c.Nodes().List(nil)
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("the server has %d nodes", len(list))
	}
	node, _, err := c.Nodes().Info(list[0].ID, nil)
	return node, err
}

// Devices returns a node's devices of a type, or all if the type is empty, sorted by their IDs.
func Devices(node *api.Node, kind string) (found []*api.NodeDevice) {
	for _, g := range node.NodeResources.Devices {
		if kind == "" || g.Type == kind {
			found = append(found, g.Instances...)
		}
	}
	slices.SortFunc(found, func(a, b *api.NodeDevice) int { return strings.Compare(a.ID, b.ID) })
	return found
}

// OneDevice requests one particular device of a type.
func OneDevice(kind, id string) *api.RequestedDevice {
	return &api.RequestedDevice{Name: kind, Constraints: []*api.Constraint{
		{LTarget: "${device.attr.ids}", Operand: "set_contains", RTarget: id},
		{LTarget: "${device.ids}", Operand: "set_contains", RTarget: id},
	}}
}

// Files returns programs and the libraries that they are linked with, by their paths in a root.
func Files(t testing.TB, programs ...string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		must.NoError(t, err)
		out, err := exec.Command("ldd", path).Output()
		must.NoError(t, err)
		found["/bin/"+name] = path
		for _, f := range strings.Fields(string(out)) {
			if strings.HasPrefix(f, "/") {
				found[f] = f
			}
		}
	}
	return found
}

// Chroot returns the agent's configuration for tasks of Nomad's exec that need only these files: Nomad copies all for
// each task.
func Chroot(t testing.TB, files map[string]string) string {
	t.Helper()
	var b strings.Builder
	for to, from := range files {
		from, err := filepath.EvalSymlinks(from) // Nomad would copy the link
		must.NoError(t, err)
		fmt.Fprintf(&b, "    %q = %q\n", from, to)
	}
	return "client {\n  chroot_env {\n" + b.String() + "  }\n}\n"
}
