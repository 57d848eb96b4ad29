// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
)

// cgroups creates the cgroups of tasks with Nomad's own code. Only this run uses their parent, with one exception: with
// cgroup v2, they are below the agent's parent if an agent has run on this machine.
type cgroups struct {
	support cgroup.Support
	missing string // why no cgroups can be created; empty if they can
	parent  string // created by this run; empty if it is the agent's
}

func newCgroups(logger hclog.Logger) *cgroups {
	g := &cgroups{support: cgroup.Detect("")}
	switch {
	case g.support.Mode == cgroup.V1 && g.support.Mounts["cpuset"] != "":
		g.parent = "nomad-conformance-" + uuid.Short()
	case g.support.Mode == cgroup.V2 && delegates(g.support.Root): // so cgroupslib has nothing to change in the root group
		if delegates(filepath.Dir(cgroupslib.LinuxResourcesPath("", "", false))) {
			return g
		}
		g.parent = "nomad-conformance-" + uuid.Short() + ".slice"
	default:
		g.missing = "no cgroup can be created here: " + g.support.Missing
		return g
	}
	cgroupslib.NomadCgroupParent = g.parent
	cores := topology.UsableCores()
	err := cgroupslib.Init(logger, cores.String())
	if err == nil {
		err = cgroupslib.GetPartition(logger, cores).Release(cores) // writes the cores of the share partition
	}
	if err != nil {
		g.missing = err.Error()
	}
	return g
}

// delegates reports whether child groups of a directory have all controllers that Nomad requires.
func delegates(dir string) bool {
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	has := strings.Fields(string(b))
	return !slices.ContainsFunc([]string{"cpuset", "cpu", "io", "memory", "pids"}, func(controller string) bool {
		return !slices.Contains(has, controller)
	})
}

// add creates the groups of a task. The returned function kills the processes in the groups and removes the groups.
func (g *cgroups) add(cfg *drivers.TaskConfig) (remove func()) {
	if g.missing != "" {
		return func() {}
	}
	groups := cgroupslib.Factory(cfg.AllocID, cfg.Name, false)
	_ = groups.Setup() // if it fails, so does the case that checks a task's cgroup
	path := cgroupslib.LinuxResourcesPath(cfg.AllocID, cfg.Name, false)
	cfg.Resources.LinuxResources.CpusetCgroupPath = path
	return func() {
		_ = cgroup.Plan(g.support, path, cfg.AllocID, cfg.Name).Kill()
		eventually(soon, func() bool { return groups.Teardown() == nil })
	}
}

// close removes the groups that newCgroups created. The result describes those that can't be removed.
func (g *cgroups) close() (left string) {
	if g.parent == "" {
		return ""
	}
	hierarchies := []string{""}
	if g.support.Mode == cgroup.V1 {
		hierarchies = []string{"freezer", "memory", "cpu", "cpuset"}
	}
	for _, hierarchy := range hierarchies {
		for _, group := range []string{cgroupslib.SharePartition(), cgroupslib.ReservePartition(), ""} {
			dir := filepath.Join(g.support.Root, hierarchy, g.parent, group)
			var err error
			gone := func() bool { err = unix.Rmdir(dir); return err == nil || err == unix.ENOENT }
			if !eventually(soon, gone) {
				left += fmt.Sprintf("cgroup %s: %v ", dir, err)
			}
		}
	}
	return left
}
