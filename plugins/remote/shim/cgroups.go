// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/client/lib/idset"
	"github.com/hashicorp/nomad/client/lib/numalib"
	"github.com/hashicorp/nomad/client/lib/numalib/hw"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"
)

// cgroups makes on the host what an agent makes on a node, by Nomad's own code: a parent, and below it
// a cgroup for each task. The parent is removed with the last task.
type cgroups struct {
	logger   hclog.Logger
	topology *numalib.Topology
	lock     string // the file whose lock is held shared while a task starts, and exclusively for a removal
}

// newCgroups sets the parent for this process (cgroupslib.NomadCgroupParent): each directory of tasks on
// a host has one.
func newCgroups(dir string, logger hclog.Logger) *cgroups {
	parent := fmt.Sprintf("outrider-remote-%.4x", sha256.Sum256([]byte(dir)))
	if cgroupslib.GetMode() == cgroupslib.CG2 {
		parent += ".slice"
	}
	cgroupslib.NomadCgroupParent = parent
	topology := numalib.Scan(numalib.PlatformScanners(true))
	return &cgroups{logger: logger, topology: topology, lock: filepath.Join(dir, "cgroups.lock")}
}

// available is whether this user can make cgroups.
func (c *cgroups) available() bool {
	return os.Geteuid() == 0 && cgroupslib.GetMode() != cgroupslib.OFF
}

// hold keeps the cgroups from being removed until release is called.
func (c *cgroups) hold() (release func(), err error) {
	f, err := waitLock(c.lock, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// make makes the cgroup of a task, and names it in its configuration. Where there can be none, it names
// none, and the task has no limits. The caller holds.
func (c *cgroups) make(cfg *drivers.TaskConfig) {
	if cfg.Resources == nil || cfg.Resources.LinuxResources == nil {
		return
	}
	linux := cfg.Resources.LinuxResources
	linux.CpusetCpus, linux.CpusetCgroupPath = "", "" // those of the node
	if !c.available() {
		return
	}
	if err := c.setup(cfg.AllocID, cfg.Name); err != nil {
		c.logger.Warn("failed to make a cgroup", "task", cfg.ID, "error", err)
		return
	}
	linux.CpusetCgroupPath = cgroupslib.LinuxResourcesPath(cfg.AllocID, cfg.Name, false)
}

func (c *cgroups) setup(allocID, name string) error {
	cores := c.topology.UsableCores()
	if err := cgroupslib.Init(c.logger, cores.String()); err != nil {
		return err
	}
	if err := cgroupslib.GetPartition(c.logger, cores).Reserve(idset.Empty[hw.CoreID]()); err != nil {
		return err
	}
	return cgroupslib.Factory(allocID, name, false).Setup()
}

// remove removes the cgroups of tasks in which nothing runs, and the parent if none is left. While a task is
// started it does nothing, and the removal of another task does it.
func (c *cgroups) remove() {
	if !c.available() {
		return
	}
	f, err := tryLock(c.lock, unix.LOCK_EX)
	if err != nil {
		return
	}
	defer f.Close()
	name := cgroupslib.NomadCgroupParent
	for _, pattern := range []string{ // what is above tasks' cgroups, each before the one that it is in
		name + "/share.slice", name + "/reserve.slice", name, // of cgroup v2
		"cpuset/" + name + "/share", "cpuset/" + name + "/reserve", "*/" + name, // of v1: also those that the core makes
	} {
		parents, _ := filepath.Glob(filepath.Join(cgroupslib.GetDefaultRoot(), pattern)) // the pattern is good
		for _, parent := range parents {
			entries, _ := os.ReadDir(parent)
			for _, e := range entries {
				if e.IsDir() {
					_ = unix.Rmdir(filepath.Join(parent, e.Name())) // EBUSY: in use
				}
			}
			_ = unix.Rmdir(parent)
		}
	}
}
