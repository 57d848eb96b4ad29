// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/vm"
)

// The machine has a pool of each kind, in files of its disk. A class has the name of its file system.
const (
	poolDir  = "/srv/pool"
	newPools = `truncate -s 1G zfs btrfs
zpool create -O mountpoint=none tank $PWD/zfs
zfs create tank/nomad
mkfs.btrfs -q btrfs
mkdir ` + poolDir + `
mount -o loop btrfs ` + poolDir + `
btrfs quota enable ` + poolDir

	// as the init system of a machine with these pools does
	importPools = `zpool import -aN -d .
zfs mount -a
mount -o loop btrfs ` + poolDir

	datasetConfig = `
file  = "${host_volume_plugin_dir}/dataset.hcl"
sweep = "5s"
api {
  address = "http://127.0.0.1:${http_port}"
}`
	classes = `
class "zfs" {
  backend   = "zfs"
  root      = "tank/nomad"
  allow     = ["mode"]
  on_delete = "destroy"
  slots {
    count    = 1
    capacity = "64MiB"
    mount    = "/scratch/zfs"
  }
}
class "btrfs" {
  backend   = "btrfs"
  root      = "` + poolDir + `"
  allow     = ["mode"]
  on_delete = "destroy"
  slots {
    count    = 1
    capacity = "64MiB"
    mount    = "/scratch/btrfs"
  }
}
`
)

var fileSystems = []string{"zfs", "btrfs"}

// makePools boots with OpenZFS and makes the pools. It skips the test where this machine lacks a program, which the
// VM has from it.
func (h *host) makePools() {
	h.t.Helper()
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		h.t.Skip("no mkfs.btrfs (package btrfs-progs)")
	}
	h.o.ZFS = true
	h.boot()
	h.shell(newPools)
}

// shell runs lines in the VM's disk, with root's PATH.
func (h *host) shell(lines string) string {
	h.t.Helper()
	return h.run(nil, "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-ec", "cd "+vm.DiskMount+"\n"+lines)
}

// datasetJob is a task of shell with the volume of each file system at /data/<it>, or a slot at /scratch/<it>.
func datasetJob(job *api.Job, volumes bool, script string) *api.Job {
	task := api.NewTask("main", "exec-lite").SetConfig("command", "/bin/sh").SetConfig("args", []string{"-ec", script})
	task.User = "nobody"
	task.KillTimeout = new(2 * time.Second)
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	resources := &api.Resources{CPU: new(20), MemoryMB: new(32)}
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(5), Mode: new("delay"), Interval: new(10 * time.Second),
		Delay: new(time.Second)} // until its slots are there
	group.Volumes = map[string]*api.VolumeRequest{}
	for _, fs := range fileSystems {
		if !volumes {
			resources.Devices = append(resources.Devices, &api.RequestedDevice{Name: fs + "/dataset/" + fs})
			continue
		}
		group.Volumes[fs] = &api.VolumeRequest{Name: fs, Type: "host", Source: fs,
			AccessMode: "single-node-writer", AttachmentMode: "file-system"}
		task.VolumeMounts = append(task.VolumeMounts, &api.VolumeMount{Volume: &fs, Destination: new("/data/" + fs)})
	}
	task.Require(resources)
	return job.AddTaskGroup(group)
}

// runs registers a job and waits until its allocation has the status. It returns the allocation's id.
func runs(t *testing.T, c *api.Client, job *api.Job, status string) (id string) {
	t.Helper()
	_, _, err := c.Jobs().Register(job, nil)
	must.NoError(t, err)
	testsupport.Within(t, 3*time.Minute, func() error {
		list, _, err := c.Jobs().Allocations(*job.ID, true, nil)
		if err != nil || len(list) == 0 {
			return fmt.Errorf("job %s has no allocation: %v", *job.ID, err)
		}
		id = list[0].ID
		var events []string
		if main := list[0].TaskStates["main"]; main != nil {
			for _, e := range main.Events {
				events = append(events, e.DisplayMessage)
			}
		}
		if list[0].ClientStatus != status {
			return fmt.Errorf("job %s is %s: %q", *job.ID, list[0].ClientStatus, events)
		}
		return nil
	})
	return id
}

// stop stops a job and waits for the end of its task.
func stop(t *testing.T, c *api.Client, job string) {
	t.Helper()
	_, _, err := c.Jobs().Deregister(job, false, nil)
	must.NoError(t, err)
	testsupport.Within(t, time.Minute, func() error {
		list, _, err := c.Jobs().Allocations(job, true, nil)
		if err != nil || list[0].ClientStatus != api.AllocClientStatusComplete {
			return fmt.Errorf("job %s is %s: %v", job, list[0].ClientStatus, err)
		}
		return nil
	})
}

// volume asks for a volume in the class, and returns its id.
func volume(c *api.Client, name, class string) (id string, err error) {
	nodes, _, err := c.Nodes().List(nil)
	if err != nil || len(nodes) != 1 {
		return "", fmt.Errorf("%d nodes: %w", len(nodes), err)
	}
	answer, _, err := c.HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: &api.HostVolume{
		Name: name, PluginID: "dataset", NodeID: nodes[0].ID, RequestedCapacityMaxBytes: 32 << 20,
		Parameters: map[string]string{"class": class, "mode": "0777"},
		RequestedCapabilities: []*api.HostVolumeCapability{{
			AccessMode: "single-node-writer", AttachmentMode: "file-system",
		}},
	}}, nil)
	if err != nil {
		return "", err
	}
	return answer.Volume.ID, nil
}

// nodeVolumes are the names of the volumes that jobs can have.
func nodeVolumes(c *api.Client) (names []string, err error) {
	nodes, _, err := c.Nodes().List(nil)
	if err != nil || len(nodes) != 1 {
		return nil, fmt.Errorf("%d nodes: %w", len(nodes), err)
	}
	node, _, err := c.Nodes().Info(nodes[0].ID, nil)
	if err != nil {
		return nil, err
	}
	for name := range node.HostVolumes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

const (
	writes = `for fs in zfs btrfs; do echo "by A" >/data/$fs/file; done; sync /data/*/file; echo written; sleep 1000`
	reads  = `for fs in zfs btrfs; do test "$(cat /data/$fs/file)" = "by A"; done`
	uses   = `for fs in zfs btrfs; do echo $NOMAD_ALLOC_ID >>/scratch/$fs/runs; done; sync /scratch/*/runs; echo used
cat /scratch/zfs/runs /scratch/btrfs/runs; sleep 1000`
)

// startWithDatasets starts the agent again. Nomad gives a host volume plugin one second to name its version, and an
// emulated machine takes longer to read it from the disk.
func (h *host) startWithDatasets() *api.Client {
	h.t.Helper()
	h.shell("DHV_OPERATION=fingerprint agent/host_volume_plugins/dataset fingerprint")
	return h.startAgent()
}

// output is what a task has printed.
func (h *host) output(alloc string) string {
	h.t.Helper()
	return h.shell("cat " + filepath.Join(agentDir, "data", "alloc", alloc, "alloc", "logs", "main.stdout.0"))
}

// says waits until a task has printed something.
func (h *host) says(alloc, want string) {
	h.t.Helper()
	testsupport.Within(h.t, time.Minute, func() error {
		if got := h.output(alloc); !strings.Contains(got, want) {
			return fmt.Errorf("the task says %q, want %q in it", got, want)
		}
		return nil
	})
}

func TestReboot_DatasetsStay(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel()
	h := newHost(t)
	h.makePools()
	c := h.runAgent(map[string]agent.Plugin{
		"exec-lite": {Config: `state_dir = "${state_dir}"`},
		"dataset":   {Config: datasetConfig, HostVolume: "dataset", HostVolumeFile: classes},
	})
	ids := map[string]string{}
	for _, fs := range fileSystems {
		id, err := volume(c, fs, fs)
		must.NoError(t, err)
		ids[fs] = id
	}
	a := runs(t, c, datasetJob(api.NewServiceJob("a", "a", "global", 50), true, writes), api.AllocClientStatusRunning)
	h.says(a, "written")
	stop(t, c, "a")
	slots := runs(t, c, datasetJob(api.NewServiceJob("slots", "slots", "global", 50), false, uses),
		api.AllocClientStatusRunning)
	h.says(slots, "used")
	h.cutPower()

	h.boot() // and no pool is there
	h.shell("mkdir " + poolDir)
	log := h.shell("wc -c <agent/agent.log")
	c = h.startWithDatasets()
	said := h.shell("tail -c +" + log + " agent/agent.log")
	for fs, sentence := range map[string]string{
		"zfs": "the pool tank is not there (import it with: zpool import tank)", "btrfs": poolDir + " is not on a btrfs",
	} {
		test.StrContains(t, said, sentence)
		_, err := volume(c, "another", fs)
		test.ErrorContains(t, err, sentence)
		test.Eq(t, "", h.shell("ls -A agent/data/host_volumes/"+ids[fs]+" 2>/dev/null || true"),
			test.Sprint("what a task would have instead of the volume"))
	}
	names, err := nodeVolumes(c)
	must.NoError(t, err)
	test.SliceEmpty(t, names, test.Sprint("the node has volumes without their pools"))
	test.Eq(t, 1, strings.Count(h.output(slots), "used"), test.Sprint("the task has started without its slots"))
	test.Eq(t, "", h.shell("find "+poolDir+" -mindepth 1"), test.Sprint("made where no pool is mounted"))

	h.run(nil, h.ctl, "agent", "stop", agentDir)
	h.shell(importPools)
	c = h.startWithDatasets()
	testsupport.Within(t, 3*time.Minute, func() error {
		names, err := nodeVolumes(c)
		if err == nil && !slices.Equal(names, []string{"btrfs", "zfs"}) {
			err = fmt.Errorf("the node has the volumes %q", names)
		}
		return err
	})
	runs(t, c, datasetJob(api.NewBatchJob("b", "b", "global", 50), true, reads), api.AllocClientStatusComplete)
	h.says(slots, strings.Repeat("\n"+slots, 4)) // each slot has what the task wrote before, and again
	stop(t, c, "slots")

	for _, fs := range fileSystems {
		_, _, err := c.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: ids[fs]}, nil)
		must.NoError(t, err)
	}
	testsupport.Within(t, time.Minute, func() error { // the plugin looks now and then
		left := h.shell("zfs list -H -o name -r tank/nomad; btrfs subvolume list " + poolDir)
		if strings.Contains(left, ".slots/") || strings.Contains(left, ids["zfs"]) || strings.Contains(left, ids["btrfs"]) {
			return fmt.Errorf("left: %s", left)
		}
		return nil
	})
	h.run(nil, h.ctl, "agent", "close", agentDir)
	h.shell("zpool export tank; umount " + poolDir)
}
