// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// owned returns an error if this connection does not own the run of a task.
func (h *host) owned(taskID string) error { return notOwner(h.runs.check(taskID)) }

// notOwner gives errNotOwner the code FailedPrecondition.
func notOwner(err error) error {
	if errors.Is(err, errNotOwner) {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return err
}

// stopping records that nobody is to claim a run any more. An error is only that it belongs to another one: a task that
// has filled the disk can be stopped.
func (h *host) stopping(taskID string, epoch int64) error {
	err := h.runs.become(taskID, epoch, Stopping)
	if err != nil && !errors.Is(err, errNotOwner) {
		h.logger.Warn("failed to record that a task is stopped", "task", taskID, "error", err)
		return nil
	}
	return notOwner(err)
}

// claim is part of server.
func (h *host) claim(_ context.Context, r *ClaimRequest) (*ClaimReply, error) {
	for {
		reply, over, err := h.runs.claim(r)
		if err == nil && len(over) == 0 && reply.Verdict == Start {
			reply.Copied = h.copiedAt(r.Owner.AllocID, r.Task)
		}
		if err != nil || len(over) == 0 {
			return reply, err
		}
		for _, o := range over {
			if err := h.end(o.Run.TaskID, true, false); err != nil {
				return nil, fmt.Errorf("the run of allocation %s can't be ended: %w", o.Run.AllocID, err)
			}
		}
	}
}

// release is part of server.
func (h *host) release(_ context.Context, r *ReleaseRequest) (*ReleaseReply, error) {
	if r.State == Told {
		return &ReleaseReply{Done: true}, notOwner(h.runs.become(r.TaskID, r.Epoch, Told))
	}
	done, err := h.runs.release(r.TaskID, r.Epoch, r.Sure)
	return &ReleaseReply{Done: done}, notOwner(err)
}

// orphansEvery is how often orphans are looked for.
const orphansEvery = 5 * time.Second

// endOrphans ends the runs that have had no owner for too long. The first look leaves the node of this connection time
// to claim its own.
func (h *host) endOrphans(ctx context.Context) {
	for {
		select {
		case <-time.After(orphansEvery):
		case <-ctx.Done():
			return
		}
		if err := h.endOver(EndRequest{}); err != nil {
			h.logger.Warn("failed to end the runs without an owner", "error", err)
		}
	}
}

// endOver ends the runs that have had no owner for too long, and one that is listed.
func (h *host) endOver(listed EndRequest) error {
	over, err := h.runs.orphans(listed)
	for _, o := range over {
		h.logger.Warn("ending a run that has no owner any more", "task", o.Run.TaskID)
		err = errors.Join(err, h.end(o.Run.TaskID, true, true))
	}
	return err
}

// endAlone is part of server.
func (h *host) endAlone(_ context.Context, r *EndRequest) (*Nothing, error) {
	if h.stopping(r.TaskID, r.Epoch) == nil {
		return &Nothing{}, h.end(r.TaskID, true, false)
	}
	return &Nothing{}, h.endOver(*r)
}
