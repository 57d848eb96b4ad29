// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
	"github.com/outrider-dev/outrider/lab/vm"
)

const (
	// newPool makes a pool in a file in the working directory
	newPool = `truncate -s 1G zfs
zpool create -O mountpoint=none tank $PWD/zfs
zfs create tank/nomad`

	// importPool does the same as the init system of a machine with this pool
	importPool = `zpool import -aN -d .
zfs mount -a`

	datasetConfig = `
file  = "${host_volume_plugin_dir}/dataset.hcl"
sweep = "5s"
api {
  address = "http://127.0.0.1:${http_port}"
}`
	classes = `
class "fast" {
  root      = "tank/nomad"
  allow     = ["mode"]
  on_delete = "destroy"
  slots {
    count    = 1
    capacity = "64MiB"
  }
}
`
)

// shell runs a shell script in the directory of the VM's disk, with root's PATH.
func (h *host) shell(lines string) string {
	h.t.Helper()
	return h.run(nil, "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-ec", "cd "+vm.DiskMount+"\n"+lines)
}

// datasetJob returns a service or batch job with a shell task. The task has the volume "data" at /data, or a slot at
// /scratch.
func datasetJob(kind, id string, volume bool, script string) *api.Job {
	job, task := nomadtest.Job(id, "exec-lite", nomadtest.Shell("set -e; "+script))
	job.Type = &kind
	task.User = "nobody"
	task.KillTimeout = new(2 * time.Second)
	group := job.TaskGroups[0]
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(5), Mode: new("delay"), Interval: new(10 * time.Second),
		Delay: new(time.Second)} // a start fails until the slot is available
	group.ReschedulePolicy = nil
	if volume {
		nomadtest.WithVolume("data", "/data")(job, task)
		group.Volumes["data"].AccessMode = "single-node-writer"
	} else {
		task.Resources.Devices = []*api.RequestedDevice{{Name: "zfs/dataset/fast"}}
	}
	return job
}

// runs registers a job, waits until its allocation has the status, and returns the allocation's ID.
func runs(t *testing.T, c *api.Client, job *api.Job, status string) string {
	t.Helper()
	_, _, err := c.Jobs().Register(job, nil)
	must.NoError(t, err)
	return nomadtest.Becomes(t, c, *job.ID, status)
}

// volume creates a volume that every user can write to.
func volume(c *api.Client, name string) (*api.HostVolume, error) {
	return nomadtest.CreateVolume(c, &api.HostVolume{Name: name, RequestedCapacityMaxBytes: 32 << 20,
		Parameters: map[string]string{"class": "fast", "mode": "0777"}})
}

const (
	writes = `echo "by A" >/data/file; sync /data/file; echo written; sleep 1000`
	reads  = `test "$(cat /data/file)" = "by A"`
	uses   = `echo $NOMAD_ALLOC_ID >>/scratch/runs; sync /scratch/runs; echo used; cat /scratch/runs; sleep 1000`
)

// startWithDatasets starts the agent again. Nomad gives a host volume plugin one second to report its version. A first
// read from the disk takes longer on an emulated machine, so startWithDatasets first runs the plugin itself.
func (h *host) startWithDatasets() *api.Client {
	h.t.Helper()
	h.shell("DHV_OPERATION=fingerprint agent/host_volume_plugins/dataset fingerprint")
	return h.startAgent()
}

// output returns what a task has printed.
func (h *host) output(alloc string) string {
	h.t.Helper()
	return h.shell("cat " + filepath.Join(agentDir, "data", "alloc", alloc, "alloc", "logs", "main.stdout.0"))
}

// says waits until a task has printed want.
func (h *host) says(alloc, want string) {
	h.t.Helper()
	testsupport.Within(h.t, 5*time.Minute, func() error {
		if got := h.output(alloc); !strings.Contains(got, want) {
			return fmt.Errorf("the task has printed %q, want %q in it", got, want)
		}
		return nil
	})
}

func TestReboot_DatasetsStay(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel()
	h := newHost(t)
	h.o.ZFS = true
	h.boot()
	h.shell(newPool)
	c := h.runAgent(map[string]agent.Plugin{
		"exec-lite": {Config: `state_dir = "${state_dir}"`},
		"dataset":   {Config: datasetConfig, HostVolume: "dataset", HostVolumeFile: classes},
	})
	made, err := volume(c, "data")
	must.NoError(t, err)
	id := made.ID
	a := runs(t, c, datasetJob("service", "a", true, writes), api.AllocClientStatusRunning)
	h.says(a, "written")
	nomadtest.Stop(t, c, "a")
	slot := runs(t, c, datasetJob("service", "slot", false, uses), api.AllocClientStatusRunning)
	h.says(slot, "used")
	h.cutPower()

	h.boot() // does not import the pool
	log := h.shell("wc -c <agent/agent.log")
	c = h.startWithDatasets()
	said := h.shell("tail -c +" + log + " agent/agent.log")
	const sentence = "the pool tank is not imported (import it with: zpool import tank)"
	test.StrContains(t, said, sentence)
	_, err = volume(c, "another")
	test.ErrorContains(t, err, sentence)
	test.Eq(t, "", h.shell("ls -A agent/data/host_volumes/"+id+" 2>/dev/null || true"),
		test.Sprint("files that a task would get instead of the volume"))
	names, err := nomadtest.Volumes(c)
	must.NoError(t, err)
	test.SliceEmpty(t, names, test.Sprint("the node has volumes without their pool"))
	test.Eq(t, 1, strings.Count(h.output(slot), "used"), test.Sprint("the task has started without its slot"))

	h.run(nil, h.ctl, "stop", agentDir)
	h.shell(importPool)
	c = h.startWithDatasets()
	nomadtest.HasVolumes(t, c, "data")
	runs(t, c, datasetJob("batch", "b", true, reads), api.AllocClientStatusComplete)
	h.says(slot, strings.Repeat("\n"+slot, 2)) // the line from before the reboot, and a new one
	nomadtest.Stop(t, c, "slot")

	_, _, err = c.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: id}, nil)
	must.NoError(t, err)
	testsupport.Within(t, 5*time.Minute, func() error { // the plugin sweeps every few seconds
		left := h.shell("zfs list -H -o name -r tank/nomad")
		if strings.Contains(left, ".slots/") || strings.Contains(left, id) {
			return fmt.Errorf("left: %s", left)
		}
		return nil
	})
	h.run(nil, h.ctl, "close", agentDir)
	h.shell("zpool export tank")
}

// TestDatasetOperations_PassOnOpenZFS runs the table of dataset operations with OpenZFS instead of zfs-fuse, and with
// cgroup v2 without v1. Its pool is in memory.
func TestDatasetOperations_PassOnOpenZFS(t *testing.T) {
	testsupport.Long(t, "a table of operations on an emulated processor")
	h := newHost(t)
	h.o.ZFS, h.o.Env = true, []string{"DATASET_POOLS=zfs=/usr/sbin/zfs=tank/nomad"}
	h.boot()
	h.shell("cd /\n" + newPool)
	h.vm.Test(t, "github.com/outrider-dev/outrider/plugins/dataset/engine", "-test.run=TestEngine_Operations/./.")
	h.shell("zpool export tank") // succeeds only if nothing uses the pool
}
