// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	nomad "github.com/hashicorp/nomad/plugins/device"

	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/schema"
)

type scratch struct {
	Root string          `codec:"root" default:"/var/scratch" doc:"Where the directories are made."`
	Idle schema.Duration `codec:"idle" default:"10m" doc:"Remove a directory that no task has used for so long."`
}

var scratchPlugin = device.Plugin[scratch]{
	Name: "scratch", Summary: "gives empty directories to tasks",
	New: func(s scratch, _ hclog.Logger) (device.Instance, error) { return s, nil },
}

func (s scratch) List(context.Context) ([]device.Group, error) {
	slots := []device.Device{{ID: "slot-a"}, {ID: "slot-b"}}
	return []device.Group{{Vendor: "host", Type: "scratch", Name: "directory", Devices: slots}}, nil
}

// Reserve creates a directory <id>.<number>, which is also the record of the lease.
func (s scratch) Reserve(_ context.Context, ids []string) (*nomad.ContainerReservation, error) {
	r := &nomad.ContainerReservation{}
	for _, id := range ids {
		dir, err := os.MkdirTemp(s.Root, id+".")
		if err != nil {
			return nil, err
		}
		r.Mounts = append(r.Mounts, &nomad.Mount{HostPath: dir, TaskPath: "/scratch/" + id})
	}
	return r, nil
}

// Leases lists all leases. It updates the time of each directory in use, because a lease ends when its directory has an
// old time.
func (s scratch) Leases(context.Context, ...string) (all []device.Lease, err error) {
	dirs, err := filepath.Glob(filepath.Join(s.Root, "slot-*.*"))
	for _, dir := range dirs {
		if inUse(dir) {
			err = os.Chtimes(dir, time.Now(), time.Now())
		}
		if info, statErr := os.Stat(dir); statErr == nil {
			id, _, _ := strings.Cut(info.Name(), ".")
			all = append(all, device.Lease{ID: id, Holder: info.Name(), Ended: time.Since(info.ModTime()) > s.Idle.Duration()})
		}
	}
	return all, err
}

func (s scratch) Release(_ context.Context, l device.Lease) error {
	if inUse(l.Holder) {
		return device.ErrInUse
	}
	return os.RemoveAll(filepath.Join(s.Root, l.Holder))
}

// inUse looks for a process that has the directory mounted.
func inUse(dir string) bool {
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	return slices.ContainsFunc(tables, func(table string) bool {
		mounts, _ := os.ReadFile(table)
		return strings.Contains(string(mounts), "/"+filepath.Base(dir)+" ")
	})
}
