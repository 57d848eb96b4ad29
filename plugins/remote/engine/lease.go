// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// renew extends the owner's lease three times in its duration, and more often after one that
// failed. It ends with the task. A slow answer is waited for: a lease that is renewed late is
// better than one that runs out.
func (t *remoteTask) renew() {
	lease := t.engine.o.Lease
	for pause := lease / 3; sleep(t.ctx, pause) == nil; {
		begun := time.Now()
		pause = lease / 3
		ref, foreign := t.owned()
		if foreign {
			continue
		}
		ctx, cancel := context.WithTimeout(t.ctx, lease)
		// marks are the pump's: an old one must not follow a new one
		err := t.ep.Renew(ctx, ref, endpoint.Mutable{})
		if errors.Is(err, endpoint.ErrEpoch) {
			t.lookAgain(ctx)
		} else if err != nil {
			pause = lease / 12
		}
		cancel()
		pause = max(pause-time.Since(begun), 0)
	}
}

// lookAgain learns who owns the object after an epoch was refused.
func (t *remoteTask) lookAgain(ctx context.Context) {
	ref, _ := t.owned()
	if r, err := t.ep.Get(ctx, ref.Name); err == nil {
		t.see(r)
	}
}

// reclaim looks whether an object that another start owns has become this allocation's again:
// after a node's return Nomad may keep its allocation, and stop the replacement, whose node
// then releases the object. Only Nomad's word counts for that. It returns true when the task
// has ended.
func (t *remoteTask) reclaim() (ended bool) {
	e := t.engine
	ctx, cancel := context.WithTimeout(t.ctx, callTime)
	defer cancel()
	ref, _ := t.owned()
	r, err := t.ep.Get(ctx, ref.Name)
	if err != nil && !errors.Is(err, endpoint.ErrGone) {
		return false
	}
	t.reached()
	me := e.alloc(ctx, t.saved.Asker, t.saved.Owner)
	if me.State != Alive || !me.Wanted {
		return false // it is about to be stopped, or nobody tells
	}
	if errors.Is(err, endpoint.ErrGone) {
		return t.gone()
	}
	if t.isMine(r) {
		t.see(r)
		return false
	}
	if strings.HasPrefix(r.Owner.TaskID, t.saved.Owner.Alloc+"/") {
		return false // a later start of this allocation has it, which another process of the plugin made
	}
	s := &situation{ // a template may have changed the files since the start
		Key: t.saved.Key, Hash: t.saved.Hash, Files: r.Files, Owner: t.saved.Owner, Records: []*endpoint.Record{r},
		Allocs: map[string]Alloc{t.saved.Owner.Alloc: me}, Lease: e.o.Lease, Told: e.wasTold,
	}
	e.askOwners(ctx, s, t.saved.Asker)
	if o := s.Allocs[r.Owner.Alloc]; o.State == NoAnswer && r.State != endpoint.Released {
		return false
	}
	switch st := plan(s); {
	case st.Do == adopt:
		if r, err = t.ep.Take(ctx, r.Ref(), t.saved.Owner); err == nil {
			t.see(r)
		}
	case st.Do == remove: // another allocation ran it to its end
		t.endWith(&task.Exit{Lost: true, Reason: "it ended while " + OwnerOf(r) + " owned it"})
		return true
	}
	return false
}
