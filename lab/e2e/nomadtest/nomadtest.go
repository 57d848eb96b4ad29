// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package nomadtest has helpers for tests with a Nomad agent, on this machine or in a virtual machine.
package nomadtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
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

// Becomes waits until the only allocation of a job has this status, and returns its ID.
func Becomes(t testing.TB, c *api.Client, job, status string) (id string) {
	t.Helper()
	testsupport.Within(t, 5*time.Minute, func() error {
		list, _, err := c.Jobs().Allocations(job, true, nil)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return fmt.Errorf("job %s has no allocation", job)
		}
		id = list[0].ID
		if list[0].ClientStatus != status {
			main := cmp.Or(list[0].TaskStates["main"], &api.TaskState{})
			return fmt.Errorf("job %s is %s: %s", job, list[0].ClientStatus, Story(main))
		}
		return nil
	})
	return id
}

// Stop calls Stopped for a job of the default namespace until the job is stopped.
func Stop(t testing.TB, c *api.Client, job string) {
	t.Helper()
	testsupport.Within(t, 5*time.Minute, func() error { return Stopped(c, job) })
}

// Stopped stops a job, unless it is already stopped. Call it again until it returns nil: then the server reports all of
// the job's allocations as ended, even those of lost nodes, and the job is still stopped after that. One stop may not
// be enough. If the job's deployment becomes successful just after the stop, Nomad makes the version of the deployment
// current again, which is not stopped (updateJobStabilityImpl in nomad/state/state_store.go).
func Stopped(c *api.Client, job string) error {
	left, err := agent.Unended(context.Background(), c, "default", fmt.Sprintf("JobID == %q", job))
	if err != nil {
		return err
	}
	j, _, err := c.Jobs().Info(job, nil) // after the allocations: once they have ended, no rollback undoes the stop
	if err != nil {
		return err
	}
	if !*j.Stop {
		_, _, err = c.Jobs().Deregister(job, false, nil)
		return errors.Join(err, fmt.Errorf("job %s was not stopped", job))
	}
	if len(left) > 0 {
		return fmt.Errorf("allocations of job %s have not ended: %q", job, left)
	}
	return nil
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

// CreateVolume makes or changes a dataset volume. Without capabilities in v, the volume has a single writer.
func CreateVolume(c *api.Client, v *api.HostVolume) (*api.HostVolume, error) {
	v.PluginID, v.Namespace = "dataset", "default"
	if v.RequestedCapabilities == nil {
		v.RequestedCapabilities = []*api.HostVolumeCapability{{
			AttachmentMode: api.HostVolumeAttachmentModeFilesystem, AccessMode: api.HostVolumeAccessModeSingleNodeWriter}}
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		got, _, err := c.HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: v}, nil)
		switch {
		case err == nil:
			return got.Volume, nil
		case !strings.Contains(err.Error(), "No path to node") || time.Now().After(end): // else retry: the node is starting
			return nil, err
		}
	}
}

// Volumes returns the names of the volumes that jobs can use on a server's only node.
func Volumes(c *api.Client) ([]string, error) {
	node, err := Node(c)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(node.HostVolumes)), nil
}

// HasVolumes waits until jobs can use exactly these volumes.
func HasVolumes(t testing.TB, c *api.Client, names ...string) {
	t.Helper()
	testsupport.Within(t, 5*time.Minute, func() error {
		got, err := Volumes(c)
		if err == nil && !slices.Equal(got, names) {
			err = fmt.Errorf("the node has the volumes %q, want %q", got, names)
		}
		return err
	})
}

// WithVolume mounts a host volume, which several tasks can write to.
func WithVolume(name, at string) func(*api.Job, *api.Task) {
	return func(j *api.Job, task *api.Task) {
		j.TaskGroups[0].Volumes = map[string]*api.VolumeRequest{name: {
			Name: name, Type: "host", Source: name, AttachmentMode: "file-system", AccessMode: "single-node-multi-writer",
		}}
		task.VolumeMounts = append(task.VolumeMounts, &api.VolumeMount{Volume: &name, Destination: &at})
	}
}

// Files returns programs, and the libraries that they are linked with. The key is the path in a root file system.
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

// Chroot returns an agent configuration that gives tasks of Nomad's exec driver only these files. Nomad copies all
// files of a chroot for each task, and the default has many.
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
