// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// host is the driver on this host. It also does what an agent does on a node: it makes the directories of tasks, plans
// their cgroups, and adds environment variables of this host.
type host struct {
	*core.Driver
	allocs  allocs
	cgroups string // name of the parent of all tasks' cgroups; differs between plugin directories on a host
	support cgroup.Support
	runs    *runs
	logger  hclog.Logger
}

func newHost(d *core.Driver, o Options, logger hclog.Logger) *host {
	return &host{
		Driver: d, allocs: allocs{filepath.Join(o.Dir, "allocs")},
		cgroups: fmt.Sprintf("outrider-tasks-%.4x", sha256.Sum256([]byte(o.Dir))), support: cgroup.Detect(""),
		runs: newRuns(o.Dir), logger: logger,
	}
}

// Name is the driver's name in jobs.
const Name = "remote"

// StartTask implements drivers.DriverPlugin. The node sends its own path in cfg.AllocDir, which StartTask replaces with
// the directory on this host. After an error, the node must end the run.
func (h *host) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	if err := h.runs.check(cfg.ID); err != nil {
		return nil, nil, err
	}
	for _, name := range []string{"PATH", "LANG", "TZ"} {
		value, set := os.LookupEnv(name)
		if _, own := cfg.Env[name]; set && !own && cfg.Env != nil {
			cfg.Env[name] = value
		}
	}
	uid, gid, err := h.userOf(cfg.User)
	if err != nil {
		return nil, nil, err
	}
	cfg.AllocDir, err = h.allocs.make(cfg.AllocID, cfg.Name, uid, gid)
	if err != nil {
		return nil, nil, err
	}
	if r := cfg.Resources; r != nil && r.LinuxResources != nil {
		r.LinuxResources.CpusetCpus, r.LinuxResources.CpusetCgroupPath = "", h.cgroupOf(cfg) // instead of the node's cpuset
	}
	handle, network, err := h.Driver.StartTask(cfg)
	if err != nil {
		return nil, nil, err
	}
	return handle, network, h.runs.started(cfg.ID, handle.DriverState)
}

// cgroupOf returns the cpuset path from which the core plans a task's cgroup (cgroup.Plan). If cgroups cannot be used,
// it returns "", and the task has no limits. The core makes and removes the cgroup.
func (h *host) cgroupOf(cfg *drivers.TaskConfig) string {
	switch {
	case os.Geteuid() != 0:
	case h.support.Mode == cgroup.V2:
		return filepath.Join(h.support.Root, h.cgroups+".slice", cfg.AllocID+"."+cfg.Name+".scope")
	case h.support.Mode == cgroup.V1:
		return filepath.Join(h.support.Root, "cpuset", h.cgroups, "share")
	}
	return ""
}

// userOf returns the ids of a task's user, who owns its files. It returns an error if tasks cannot run as this user.
func (h *host) userOf(field string) (uid, gid int, err error) {
	uid, gid = os.Geteuid(), os.Getegid()
	user, err := h.LocalUser(field)
	if user == nil || err != nil {
		return uid, gid, err
	}
	if uid != 0 && (int(user.UID) != uid || int(user.GID) != gid) {
		return 0, 0, fmt.Errorf("tasks on this host can't run as user %q: the plugin logs in as user id %d, which is not "+
			"root", field, uid)
	}
	return int(user.UID), int(user.GID), nil
}

// recover makes this process's driver follow a running task again, from the saved state of its run. The error has the
// code NotFound if this host no longer has the task. Other errors may be temporary.
func (h *host) recover(taskID string, state []byte) error {
	allocID, name := partsOf(taskID)
	dir, err := h.allocs.path(allocID)
	if err != nil {
		return err
	}
	handle := drivers.NewTaskHandle(1)
	handle.Config = &drivers.TaskConfig{ID: taskID, AllocID: allocID, AllocDir: dir, Name: name}
	handle.State, handle.DriverState = drivers.TaskStateRunning, state
	err = h.Driver.RecoverTask(handle)
	if errors.Is(err, task.ErrNoState) {
		return status.Error(codes.NotFound, err.Error())
	}
	return err
}

// ofOwner is a gRPC interceptor. It refuses Nomad's calls that change a task, unless this connection owns the task's
// run. (To destroy a task, nodes call Change.)
func (h *host) ofOwner(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	switch r := request.(type) {
	case *proto.StopTaskRequest, *proto.SignalTaskRequest, *proto.ExecTaskRequest, *proto.DestroyTaskRequest:
		if err := h.runs.check(r.(interface{ GetTaskId() string }).GetTaskId()); err != nil {
			return nil, err
		}
	}
	return next(ctx, request)
}

func (h *host) ExecTaskStreamingRaw(
	ctx context.Context, id string, command []string, tty bool, stream drivers.ExecTaskStream,
) error {
	if err := h.runs.check(id); err != nil {
		return err
	}
	return h.Driver.ExecTaskStreamingRaw(ctx, id, command, tty, stream)
}

// end destroys the tasks and the record of a run that this connection owns. It keeps the allocation's directory.
func (h *host) end(one *run) error {
	for _, id := range append(one.Interrupted, one.TaskID) {
		if err := h.Driver.DestroyTask(id, true); err != nil {
			return err
		}
	}
	allocID, _ := partsOf(one.TaskID)
	h.allocs.used(allocID)
	return h.runs.end(one.TaskID)
}

func (h *host) list(context.Context, *Nothing) (*ListReply, error) {
	all, err := h.runs.list()
	return &ListReply{Runs: all}, err
}

func (h *host) claim(_ context.Context, r *ClaimRequest) (*ClaimReply, error) {
	for {
		reply, over, err := h.runs.claim(r)
		if err == nil && len(over) == 0 && reply.Verdict == Start {
			file, unnamed := h.allocs.copied(r.TaskID)
			if unnamed == nil {
				_ = load(file, &reply.Copied) // without the file, nothing was copied
				h.allocs.resume(r.TaskID, r.Output)
			}
		}
		if err == nil && reply.Verdict == Have && r.Resume {
			err = h.recover(reply.TaskID, reply.saved)
		}
		if err != nil || len(over) == 0 {
			return reply, err
		}
		for _, o := range over {
			if err := h.end(o); err != nil {
				return nil, fmt.Errorf("failed to end the run of task %s: %w", o.TaskID, err)
			}
		}
	}
}

func (h *host) change(_ context.Context, r *ChangeRequest) (*Nothing, error) {
	if r.State == Ending {
		one, err := h.runs.seize(r)
		if err == nil {
			err = h.end(one)
		}
		return &Nothing{}, err
	}
	if r.AllocID == "" {
		return &Nothing{}, h.runs.assign(r)
	}
	return &Nothing{}, h.runs.become(r.TaskID, r.AllocID, r.State)
}

// endOrphans ends runs that have had no owner for too long, and removes directories of old allocations. It waits before
// the first check, so the node of this connection has time to claim its runs.
func (h *host) endOrphans(ctx context.Context) {
	for {
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return
		}
		over, err := h.runs.orphans()
		for _, o := range over {
			h.logger.Warn("ending a run without an owner", "task", o.TaskID)
			err = errors.Join(err, h.end(o))
		}
		if err != nil {
			h.logger.Warn("failed to end runs without an owner", "error", err)
		}
		if err := h.removeAllocs(); err != nil {
			h.logger.Warn("failed to remove the directories of old allocations", "error", err)
		}
	}
}

// keepTime is how long an allocation's directory is kept after its last run: its tasks may be waiting for a restart.
const keepTime = 4 * time.Hour

// removeAllocs removes the directories of allocations whose last run ended more than keepTime ago. While a record
// cannot be read, it removes nothing, because that run may use any directory.
func (h *host) removeAllocs() error {
	var old []string
	err := h.runs.locked("", func(all records) (err error) {
		if h.runs.unread != nil {
			return h.runs.unread
		}
		inUse := map[string]bool{}
		for _, one := range all {
			allocID, _ := partsOf(one.TaskID)
			inUse[allocID] = true
		}
		old, err = h.allocs.retire(inUse, time.Now().Add(-keepTime))
		return err
	})
	for _, dir := range old {
		err = errors.Join(err, owndir.RemoveAll(dir))
	}
	return err
}
