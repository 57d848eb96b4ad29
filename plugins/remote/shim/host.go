// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// CgroupParent has the cgroups of the tasks of a state directory, and of its supervisor. Another
// state directory of the host may have objects of the same names.
func CgroupParent(stateDir string) string {
	sum := fnv.New64a()
	sum.Write([]byte(filepath.Clean(stateDir)))
	return fmt.Sprintf("outrider.slice/%x", sum.Sum(nil))
}

// support is what this host has of cgroups. Below its own a login without root has none: what
// sshd and systemd make for it is not delegated.
func support() cgroup.Support {
	if os.Geteuid() != 0 {
		return cgroup.Support{Mode: cgroup.None, Missing: "limits need cgroups, which on the host only root can use: " +
			"tasks run there as user id " + strconv.Itoa(os.Geteuid())}
	}
	return cgroup.Detect("")
}

// group plans the cgroup of an object.
func (s *Shim) group(name string) cgroup.Group {
	return cgroup.TaskBelow(s.support, CgroupParent(s.cfg.StateDir), name)
}

// unlimited is why limits can't be enforced on this host, empty where they are.
func (s *Shim) unlimited() string {
	if s.support.Mode == cgroup.None {
		return s.support.Missing
	}
	g := s.group("any")
	for _, c := range []string{"memory", "cpu", "pids"} {
		if !g.Has(c) {
			return fmt.Sprintf("the host has no controller %s of cgroup %s", c, s.support.Mode)
		}
	}
	return ""
}

// leaf plans that of the supervisor.
func (s *Shim) leaf() cgroup.Group {
	return cgroup.LeafBelow(s.support, CgroupParent(s.cfg.StateDir), "supervisor")
}

// probe is endpoint.Endpoint's Probe.
func (s *Shim) probe(context.Context) (*endpoint.Facts, error) {
	dir, err := owndir.Make(s.cfg.StateDir, 0o711)
	if err != nil {
		return nil, fmt.Errorf("the directory for tasks on the host can't be used: %w", err)
	}
	defer dir.Close()
	f := &endpoint.Facts{
		Kind: "ssh", Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Limits: s.unlimited(),
		More: map[string]string{"user": strconv.Itoa(os.Geteuid()), "cgroup": cgroupVersion()},
	}
	if f.More["shim"], err = ownBuild(); err != nil {
		return nil, err
	}
	var free unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &free); err == nil && free.Bavail == 0 {
		return nil, fmt.Errorf("no space is left on the host in %s", s.cfg.StateDir)
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		f.Version = unix.ByteSliceToString(uts.Release[:])
		f.More["hostname"] = unix.ByteSliceToString(uts.Nodename[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	return f, nil
}

// cgroupVersion is that of the host's controllers, as Docker has it.
func cgroupVersion() string {
	const root = "/sys/fs/cgroup/"
	if _, err := os.Stat(root + "cgroup.controllers"); err == nil {
		return "2"
	}
	if v1, _ := filepath.Glob(root + "*/cgroup.clone_children"); len(v1) > 0 {
		return "1"
	}
	return "none"
}
