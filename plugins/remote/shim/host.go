// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// host is the driver with what an agent does for its tasks on a node: their directories, their cgroups, and
// variables that are this host's.
type host struct {
	*core.Driver
	state   string // below which each node has the store of its tasks
	allocs  allocs
	cgroups *cgroups

	moments   moments
	connected Moment // of this connection
}

var (
	_ drivers.DriverPlugin = (*host)(nil)
	_ server               = (*host)(nil)
)

func newHost(d *core.Driver, o Options, logger hclog.Logger) *host {
	return &host{
		Driver: d, state: filepath.Join(o.Dir, Name), allocs: allocs{filepath.Join(o.Dir, "allocs")},
		cgroups: newCgroups(o.Dir, topology(), logger),
		moments: moments{dir: filepath.Join(o.Dir, "nodes")}, connected: o.Connected,
	}
}

// Name is the driver's, as jobs write it.
const Name = "remote"

// StartTask is part of drivers.DriverPlugin. The allocation's directory in the configuration is that on the
// node; the handle has that on this host.
func (h *host) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	if len(cfg.Devices) > 0 || len(cfg.Mounts) > 0 {
		return nil, nil, errors.New("devices and volumes of the Nomad node can't be given to a task on another host")
	}
	for _, name := range []string{"PATH", "LANG", "TZ"} {
		value, set := os.LookupEnv(name)
		if _, own := cfg.Env[name]; set && !own && cfg.Env != nil {
			cfg.Env[name] = value
		}
	}
	handle, network, err := h.start(cfg)
	if err != nil {
		h.cgroups.remove()
	}
	return handle, network, err
}

// start makes what the task needs, and starts it.
func (h *host) start(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	release, err := h.cgroups.hold()
	if err != nil {
		return nil, nil, err
	}
	defer release()
	if err := h.moments.check(cfg.NodeID, h.connected); err != nil {
		return nil, nil, err
	}
	dir, err := h.allocs.make(cfg)
	if err != nil {
		return nil, nil, err
	}
	cfg.AllocDir = dir
	h.cgroups.make(cfg)
	return h.Driver.StartTask(cfg)
}

// RecoverTask is part of drivers.DriverPlugin. Its error has the code NotFound if this host has nothing of the
// task any more. Another error may pass.
func (h *host) RecoverTask(handle *drivers.TaskHandle) error {
	err := h.Driver.RecoverTask(handle)
	if err != nil && !h.has(handle.Config.ID) {
		return status.Error(codes.NotFound, err.Error())
	}
	return err
}

// has is whether there is a record of a task.
func (h *host) has(id string) bool {
	stores, _ := filepath.Glob(filepath.Join(h.state, "*")) // the pattern is good
	for _, store := range stores {
		if _, err := os.Lstat(task.Store{Dir: store}.TaskDir(id)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// DestroyTask is part of drivers.DriverPlugin.
func (h *host) DestroyTask(id string, force bool) error {
	if err := h.Driver.DestroyTask(id, force); err != nil {
		return err
	}
	h.cgroups.remove()
	return nil
}

// list is part of server.
func (h *host) list(r *ListRequest) (*ListReply, error) {
	found, err := h.allocs.list(r.NodeID)
	return &ListReply{Allocs: found}, err
}

// remove is part of server.
func (h *host) remove(_ context.Context, r *RemoveRequest) (*RemoveReply, error) {
	stores, err := filepath.Glob(filepath.Join(h.state, "*"))
	if err != nil {
		return nil, err
	}
	for _, store := range stores {
		states, _, err := task.Store{Dir: store}.List()
		if err != nil {
			continue // no store
		}
		for _, st := range states {
			if st.AllocID != r.AllocID {
				continue
			}
			if err := h.DestroyTask(st.ID, true); err != nil {
				return nil, fmt.Errorf("task %q: %w", st.ID, err)
			}
		}
	}
	h.cgroups.remove()
	return &RemoveReply{}, h.allocs.remove(r.AllocID)
}
