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
	"time"

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
	runs    *runs
	logger  hclog.Logger
}

var (
	_ drivers.DriverPlugin = (*host)(nil)
	_ server               = (*host)(nil)
)

func newHost(d *core.Driver, o Options, logger hclog.Logger) *host {
	a := allocs{filepath.Join(o.Dir, "allocs")}
	return &host{
		Driver: d, state: filepath.Join(o.Dir, Name), allocs: a,
		cgroups: newCgroups(o.Dir, logger), runs: newRuns(o.Dir), logger: logger,
	}
}

// Name is the driver's, as jobs write it.
const Name = "remote"

// StartTask is part of drivers.DriverPlugin. The allocation's directory in the configuration is that on the
// node; the handle has that on this host.
func (h *host) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	for _, name := range []string{"PATH", "LANG", "TZ"} {
		value, set := os.LookupEnv(name)
		if _, own := cfg.Env[name]; set && !own && cfg.Env != nil {
			cfg.Env[name] = value
		}
	}
	handle, network, err := h.start(cfg)
	if err != nil {
		h.cgroups.remove()
		_, _, ended := h.runs.end(cfg.ID)
		return nil, nil, errors.Join(err, ended)
	}
	err = h.runs.started(cfg.ID, Handle{
		TaskID: handle.Config.ID, AllocID: cfg.AllocID, AllocDir: cfg.AllocDir, State: handle.DriverState,
	})
	if err != nil {
		return nil, nil, errors.Join(err, h.Driver.DestroyTask(handle.Config.ID, true))
	}
	return handle, network, nil
}

// start makes what the task needs, and starts it.
func (h *host) start(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	release, err := h.cgroups.hold()
	if err != nil {
		return nil, nil, err
	}
	defer release()
	if err := h.runs.check(cfg.ID); err != nil {
		return nil, nil, err
	}
	uid, gid, err := h.userOf(cfg.User)
	if err != nil {
		return nil, nil, err
	}
	owner := Owner{AllocID: cfg.AllocID, NodeID: cfg.NodeID, NodeDir: cfg.AllocDir}
	cfg.AllocDir, err = h.allocs.make(cfg.AllocID, cfg.Name, owner, uid, gid)
	if err != nil {
		return nil, nil, err
	}
	h.cgroups.make(cfg)
	return h.Driver.StartTask(cfg)
}

// userOf is whose a task's files are, by the job's user. An error is that there can be no such task.
func (h *host) userOf(field string) (uid, gid int, err error) {
	uid, gid = os.Geteuid(), os.Getegid()
	who, err := h.LocalUser(field)
	if who == nil || err != nil {
		return uid, gid, err
	}
	if uid != 0 && (int(who.UID) != uid || int(who.GID) != gid) {
		return 0, 0, fmt.Errorf("a task on this host can't be of user %q: the plugin logs in as user id %d, which is not "+
			"root", field, uid)
	}
	return int(who.UID), int(who.GID), nil
}

// RecoverTask is part of drivers.DriverPlugin. Its error has the code NotFound if this host has nothing of the
// task any more. Another error may pass.
func (h *host) RecoverTask(handle *drivers.TaskHandle) error {
	if err := h.owned(handle.Config.ID); err != nil {
		return err
	}
	err := h.Driver.RecoverTask(handle)
	if err != nil && h.storeOf(handle.Config.ID) == nil {
		return status.Error(codes.NotFound, err.Error())
	}
	return err
}

// stores are those of all tasks: each node has one.
func (h *host) stores() (all []task.Store) {
	dirs, _ := filepath.Glob(filepath.Join(h.state, "*")) // the pattern is good
	for _, dir := range dirs {
		all = append(all, task.Store{Dir: dir})
	}
	return all
}

// storeOf is the store that a task is in, nil if it is in none.
func (h *host) storeOf(id string) *task.Store {
	for _, store := range h.stores() {
		if _, err := os.Lstat(store.TaskDir(id)); !errors.Is(err, fs.ErrNotExist) {
			return &store
		}
	}
	return nil
}

// StopTask is part of drivers.DriverPlugin. From then on nobody claims the run.
func (h *host) StopTask(id string, timeout time.Duration, signal string) error {
	if err := h.stopping(id, 0); err != nil {
		return err
	}
	return h.Driver.StopTask(id, timeout, signal)
}

// SignalTask is part of drivers.DriverPlugin.
func (h *host) SignalTask(id, signal string) error {
	if err := h.owned(id); err != nil {
		return err
	}
	return h.Driver.SignalTask(id, signal)
}

// ExecTask is part of drivers.DriverPlugin.
func (h *host) ExecTask(id string, command []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	if err := h.owned(id); err != nil {
		return nil, err
	}
	return h.Driver.ExecTask(id, command, timeout)
}

// ExecTaskStreamingRaw is part of drivers.ExecTaskStreamingRawDriver.
func (h *host) ExecTaskStreamingRaw(
	ctx context.Context, id string, command []string, tty bool, stream drivers.ExecTaskStream,
) error {
	if err := h.owned(id); err != nil {
		return err
	}
	return h.Driver.ExecTaskStreamingRaw(ctx, id, command, tty, stream)
}

// DestroyTask is part of drivers.DriverPlugin. It is no error if the run belongs to another allocation by now. One that
// has never been handed over needs no claim: a plugin may have failed to recover it.
func (h *host) DestroyTask(id string, force bool) error {
	err := h.stopping(id, 0)
	if err != nil {
		err = h.runs.seize(id, func(one *run) bool {
			return one.Owner.AllocID == one.Run.AllocID && one.State != Released
		})
	}
	if errors.Is(err, errNotOwner) {
		return nil
	}
	if err != nil {
		return err
	}
	return h.end(id, force, false)
}

// end removes everything of a run that this connection owns. The directory of the allocation that it was started for
// goes with the last run in it if no node removes it: it has no owner any more, or another allocation.
func (h *host) end(id string, force, orphan bool) error {
	err := h.Driver.DestroyTask(id, force)
	h.cgroups.remove()
	if err != nil {
		return err
	}
	gone, last, err := h.runs.end(id)
	if err == nil && last && (orphan || gone.Owner.AllocID != gone.Run.AllocID) {
		err = h.allocs.remove(gone.Run.AllocID)
	}
	return err
}

// list is part of server.
func (h *host) list(_ context.Context, r *ListRequest) (*ListReply, error) {
	if r.NodeID != "" {
		allocs, err := h.allocs.list(r.NodeID)
		return &ListReply{Allocs: allocs}, err
	}
	all, err := h.runs.list()
	return &ListReply{Runs: all}, err
}

// remove is part of server.
func (h *host) remove(_ context.Context, r *RemoveRequest) (*Nothing, error) {
	for _, store := range h.stores() {
		states, _, err := store.List()
		if err != nil {
			continue // no store
		}
		for _, st := range states {
			if st.AllocID != r.AllocID {
				continue
			}
			if err := notOwner(h.runs.seize(st.ID, func(one *run) bool {
				return one.Owner.NodeID == r.NodeID && one.State != Running // which another allocation may take over
			})); err != nil {
				return nil, err
			}
			if err := h.DestroyTask(st.ID, true); err != nil {
				return nil, fmt.Errorf("task %q: %w", st.ID, err)
			}
		}
	}
	h.cgroups.remove()
	return &Nothing{}, h.allocs.remove(r.AllocID)
}
