// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

const (
	heldTime  = time.Minute     // how long a start waits for a run that belongs to another allocation
	heldPause = time.Second     // the pause between two attempts of such a start
	takenTime = 5 * time.Second // the pause between two attempts of a running task to get its run back
)

func (t *remoteTask) request(taskID string) *shim.ClaimRequest {
	return &shim.ClaimRequest{
		Key: t.saved.Key, Hash: t.saved.Hash, TaskID: taskID,
		Owner:  shim.Owner{AllocID: t.config.AllocID, NodeID: t.config.NodeID},
		Wanted: t.wanted, Reattach: t.saved.OnLost != onLostRestart, OrphanTimeout: t.saved.OrphanTimeout,
	}
}

// claim claims the task's run for this allocation. While the run belongs to another allocation, claim waits, for at
// most heldTime. If the verdict is Start, the caller must start the run. Before each attempt, claim ends the runs in
// engine.left, because it could otherwise take over one of them.
func (t *remoteTask) claim(ctx context.Context, link *host.Link, progress core.Event) (*shim.ClaimReply, error) {
	limit := time.Now().Add(heldTime)
	request := t.request(t.config.ID)
	request.Output = *t.output()
	for announced := false; ; {
		err := t.endLeft(ctx, link)
		var reply *shim.ClaimReply
		if err == nil {
			reply, err = shim.Claim.On(ctx, link.Shim, request)
		}
		if err != nil {
			return nil, structs.NewRecoverableError(errors.New(plain.Line(err.Error(), maxMessage)), true)
		}
		if reply.Verdict == shim.Start || reply.Verdict == shim.Have {
			return reply, nil
		}

		other := reply.Owner.AllocID
		asked := slices.Contains(slices.Concat(request.Gone, request.Alive), other)
		request.Alive = slices.DeleteFunc(request.Alive, func(id string) bool { return id == other })
		over, known := t.engine.nomad.over(ctx, NamesOf(t.saved.Key).Namespace, other)
		if over {
			request.Gone = append(request.Gone, other)
		} else if known || reply.Verdict == shim.Doubtful {
			request.Alive = append(request.Alive, other)
		}
		if !asked && (over || reply.Verdict == shim.Doubtful) {
			continue
		}
		held := fmt.Sprintf("allocation %s, which still has the task on endpoint %q", plain.Line(other, maxMessage),
			t.saved.Endpoint)
		if time.Now().After(limit) {
			return nil, structs.NewRecoverableError(fmt.Errorf("gave up waiting for %s", held), true)
		}
		if !announced {
			progress("Waiting for %s", held)
			announced = true
		}
		select {
		case <-time.After(heldPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// reclaim claims the task's existing run on a new connection. It returns false if another allocation has the run, and
// an error with the code NotFound if the host does not have the run.
func (t *remoteTask) reclaim(ctx context.Context, link *host.Link) (mine bool, err error) {
	t.claiming.Lock() // keeps release waiting, because a claim after a release would take the run back
	defer t.claiming.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // the host's disk may hang, and a release waits for this claim
	defer cancel()
	if t.parted.Load() {
		return false, nil
	}
	request := t.request(t.saved.RunID)
	request.Resume = true
	reply, err := shim.Claim.On(ctx, link.Shim, request)
	switch {
	case err != nil:
		return false, err
	case reply.Verdict == shim.Have:
		t.setTaken("")
		return true, nil
	case reply.Verdict == shim.None:
		return false, status.Error(codes.NotFound, "the host has no record of it")
	case t.setTaken(reply.Owner.AllocID):
		t.event("Allocation %s has taken over the task", plain.Line(reply.Owner.AllocID, maxMessage))
	}
	return false, nil
}

// setTaken records the allocation that has the run, and reports whether that is a different allocation than before. As
// long as the run exists, the task on this node remains running, because Nomad would restart it after an exit.
func (t *remoteTask) setTaken(allocID string) bool {
	t.mu.Lock()
	changed := t.takenBy != allocID
	t.takenBy = allocID
	asked := t.stop != nil
	t.mu.Unlock()
	if allocID != "" && asked {
		t.part()
	}
	return changed
}

func (t *remoteTask) isTaken() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.takenBy != ""
}

// part ends the task on this node, but not its run. The exit code is 0, because a lost exit would fail the allocation.
func (t *remoteTask) part() {
	t.parted.Store(true)
	t.End(&task.Exit{At: time.Now()})
	t.cancel()
}

// release leaves the run on the host to the next allocation of the task, and ends the task on this node. If the host
// cannot record the release, it still notices that nobody follows the run.
func (t *remoteTask) release(reason string) {
	t.claiming.Lock()
	defer t.claiming.Unlock()
	ctx, cancel := context.WithTimeout(t.engine.ctx, 5*time.Second)
	defer cancel()
	if link, err := t.connected(); err == nil {
		_ = t.become(ctx, link, shim.Released)
	}
	t.event("The task is left running on endpoint %q: %s", t.saved.Endpoint, plain.Line(reason, maxMessage))
	t.part()
}

func (t *remoteTask) become(ctx context.Context, link *host.Link, s shim.State) error {
	request := &shim.ChangeRequest{TaskID: t.saved.RunID, AllocID: t.config.AllocID, State: s}
	_, err := shim.Change.On(ctx, link.Shim, request)
	return err
}

// endRun ends the task's run on the host. If the run was released or belongs to another allocation by now, endRun
// leaves it alone and returns nil.
func (t *remoteTask) endRun(ctx context.Context, link *host.Link) error {
	err := t.become(ctx, link, shim.Ending)
	if err != nil && status.Code(err) != codes.FailedPrecondition {
		return err
	}
	t.engine.left.Delete(t)
	return nil
}

// endLeft ends those runs in engine.left that belong to the same task as t.
func (t *remoteTask) endLeft(ctx context.Context, link *host.Link) error {
	var errs []error
	for value := range t.engine.left.Range {
		left := value.(*remoteTask)
		if left.saved.Endpoint == t.saved.Endpoint && left.saved.Key == t.saved.Key {
			errs = append(errs, left.endRun(ctx, link))
		}
	}
	return errors.Join(errs...)
}
