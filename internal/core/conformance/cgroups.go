// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
)

// cgroups makes the cgroups of tasks that a Nomad client makes. They are below those
// of an agent, if one has run on this machine, and otherwise below directories of
// their own.
type cgroups struct {
	support cgroup.Support
	share   string // v1: the cpuset of tasks without cores; v2: the slice of their scopes; empty: none
	made    []string
}

func newCgroups() *cgroups {
	g := &cgroups{support: cgroup.Detect("")}
	own := "nomad-conformance-" + uuid.Short()
	switch {
	case g.support.Mode == cgroup.V1 && g.support.Mounts["cpuset"] != "":
		g.makeShare(filepath.Join(g.support.Root, "cpuset"), "nomad", own)
	case g.support.Mode == cgroup.V2 && g.handsDown(g.support.Root):
		g.makeSlice(g.support.Root, "nomad.slice", own+".slice")
	}
	return g
}

func (g *cgroups) makeShare(root, agents, own string) {
	if g.share = filepath.Join(root, agents, "share"); exists(g.share) {
		return
	}
	g.share = filepath.Join(root, own, "share")
	for _, dir := range []string{filepath.Dir(g.share), g.share} {
		g.mkdir(dir)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			b, _ := os.ReadFile(filepath.Join(root, file))
			_ = os.WriteFile(filepath.Join(dir, file), b, 0o600) // a start shows what is wrong with it
		}
	}
}

const controllers = "+cpuset +cpu +memory +pids"

func (g *cgroups) makeSlice(root, agents, own string) {
	if g.share = filepath.Join(root, agents, "share.slice"); g.handsDown(g.share) {
		return
	}
	g.share = filepath.Join(root, own, "share.slice")
	for _, dir := range []string{filepath.Dir(g.share), g.share} {
		g.mkdir(dir)
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(controllers), 0o600)
	}
}

// handsDown says whether groups in dir have all controllers.
func (g *cgroups) handsDown(dir string) bool {
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	has := strings.Fields(string(b))
	return !slices.ContainsFunc(strings.Fields(controllers), func(c string) bool { return !slices.Contains(has, c[1:]) })
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (g *cgroups) mkdir(dir string) {
	if os.Mkdir(dir, 0o755) == nil {
		g.made = append(g.made, dir)
	}
}

// add makes the groups of a task and returns a function that kills what is in them
// and removes them.
func (g *cgroups) add(cfg *drivers.TaskConfig) (remove func()) {
	if g.share == "" {
		return func() {}
	}
	path, dirs := g.share, []string{}
	if g.support.Mode == cgroup.V2 {
		path = filepath.Join(g.share, cfg.AllocID+"."+cfg.Name+".scope")
		dirs = []string{path}
	}
	cfg.Resources.LinuxResources.CpusetCgroupPath = path
	group := cgroup.Plan(g.support, path, cfg.AllocID, cfg.Name)
	for _, controller := range []string{"freezer", "memory", "cpu"} {
		if dir := group.V1[controller]; dir != "" {
			g.mkdir(filepath.Dir(dir))
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range dirs {
		_ = os.Mkdir(dir, 0o755) // Nomad ignores it, too
	}
	return func() {
		_ = group.Kill()
		for _, dir := range dirs {
			_ = removeCgroup(dir) // as Nomad does, which logs it
		}
	}
}

func removeCgroup(dir string) error {
	err := unix.Rmdir(dir)
	for end := time.Now().Add(soon); err == unix.EBUSY && time.Now().Before(end); err = unix.Rmdir(dir) {
		time.Sleep(5 * time.Millisecond)
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// close removes what was made and returns what can't be removed.
func (g *cgroups) close() (left string) {
	for _, dir := range slices.Backward(g.made) {
		if err := removeCgroup(dir); err != nil {
			left += fmt.Sprintf("cgroup %s: %v ", dir, err)
		}
	}
	return left
}
