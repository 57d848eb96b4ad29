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
			if err := h.end(o.Run.TaskID, false); err != nil {
				return nil, fmt.Errorf("the run of allocation %s can't be ended: %w", o.Run.AllocID, err)
			}
		}
	}
}

// change is part of server. A task that has filled the disk can be stopped.
func (h *host) change(_ context.Context, r *ChangeRequest) (*Nothing, error) {
	err := h.runs.become(r.TaskID, r.AllocID, r.State)
	if r.State == Stopping && err != nil && !errors.Is(err, errNotOwner) {
		h.logger.Warn("failed to record that a task is stopped", "task", r.TaskID, "error", err)
		err = nil
	}
	return &Nothing{}, notOwner(err)
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
		err = errors.Join(err, h.end(o.Run.TaskID, true))
	}
	return err
}

// endRun is part of server.
func (h *host) endRun(_ context.Context, r *EndRequest) (*Nothing, error) {
	if r.AllocID == "" {
		return &Nothing{}, h.endOver(*r)
	}
	return &Nothing{}, notOwner(h.endIf(r.TaskID, func(one *run) bool {
		return one.Owner.AllocID == r.AllocID && one.State != Released
	}))
}

// endIf ends a run that is there, whoever has it, if that is allowed; otherwise it returns errNotOwner.
func (h *host) endIf(taskID string, allowed func(one *run) bool) error {
	if err := h.runs.seize(taskID, allowed); err != nil {
		return err
	}
	return h.end(taskID, false)
}
