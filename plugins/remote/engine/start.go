// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The times of a start.
const (
	askEvery  = time.Second      // while it waits for a change
	endMargin = 20 * time.Second // for a stop over a network, besides its grace
	callTime  = 15 * time.Second // of a call that reads or changes a record
	startTime = 5 * time.Minute  // of a program's start
	copyTime  = time.Hour        // of the pull of an image and a copy of files
	mostSteps = 100              // of a plan: an endpoint that answers as if nothing had been done is left
)

// start is one call of Start.
type start struct {
	task    *remoteTask
	want    *Task
	payload *payload

	job    Alloc            // what was last known of this allocation's job
	said   string           // the reason of the last wait
	waited *endpoint.Record // the object of the last wait for one
}

// run follows the plan until the object runs, or has ended and Nomad was not told.
func (s *start) run(ctx context.Context) (*endpoint.Record, error) {
	e, t := s.task.engine, s.task
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	begun := time.Now()
	for steps := 1; ; {
		look, err := s.look(ctx)
		if err != nil {
			return nil, s.failed(ctx, err)
		}
		st := plan(look)
		e.o.Logger.Debug("start", "task", t.saved.Owner.TaskID, "key", look.Key.String(), "do", st.Do, "reason", st.Reason)
		var r *endpoint.Record
		switch st.Do {
		case refuse:
			return nil, recoverable("failed to start the task at endpoint %s: %s", t.saved.Endpoint, st.Reason)
		case wait:
			s.waited = cmp.Or(st.Record, s.waited)
			if err := s.await(ctx, st, begun); err != nil {
				return nil, err
			}
			continue
		case remove:
			err = limited(ctx, callTime, func(ctx context.Context) error { return t.ep.Remove(ctx, st.Record.Ref()) })
			if err == nil {
				s.ended(st.Record)
			}
		case end:
			t.event("Ending object %s of %s first: %s", st.Record.Name, OwnerOf(st.Record), st.Reason)
			if err = e.endObject(ctx, t.ep, st.Record, t.saved.Owner, st.Reason); err == nil {
				s.ended(st.Record)
				s.waited = nil // this start has ended it
			}
		case create:
			if r, err = s.create(ctx, look, st); err == nil {
				return r, nil
			}
		case adopt:
			if r, err = s.adopt(ctx, st); err == nil {
				return r, nil
			}
		}
		switch {
		case err == nil, errors.Is(err, endpoint.ErrEpoch), errors.Is(err, endpoint.ErrExists),
			errors.Is(err, endpoint.ErrGone):
			// the step is done, or another owner was faster: look again
		default:
			return nil, s.failed(ctx, err)
		}
		if steps++; steps > mostSteps {
			return nil, recoverable("failed to start the task at endpoint %s: %d steps did not help, the last of which was "+
				"to %s: %s", t.saved.Endpoint, mostSteps, st.Do, st.Reason)
		}
		if err := sleep(ctx, min(time.Duration(steps)*5*time.Millisecond, askEvery)); err != nil {
			return nil, err
		}
	}
}

// ended records the end of an object that this allocation has had by an earlier start.
func (s *start) ended(r *endpoint.Record) {
	if r.Owner.Alloc == s.task.saved.Owner.Alloc {
		s.task.engine.sees(s.task.run(), true)
	}
}

// await waits until the situation may have changed. It returns an error when the start, begun at begun, has waited for
// longer than a lease: an owner that renews its lease may keep the object as long as it wants.
func (s *start) await(ctx context.Context, st step, begun time.Time) error {
	t := s.task
	if waited := time.Since(begun); waited > t.engine.o.Lease+endMargin {
		return recoverable("failed to start the task at endpoint %s: %s (waited %s)",
			t.saved.Endpoint, st.Reason, waited.Round(time.Second))
	}
	if st.Reason != s.said {
		s.said = st.Reason
		s.tellWait(st)
	}
	pause := askEvery
	if st.Wait > 0 {
		pause = min(pause, st.Wait+10*time.Millisecond)
	}
	return sleep(ctx, pause)
}

func (s *start) tellWait(st step) {
	if st.Wait > 0 {
		s.task.event("Waiting at endpoint %s for up to %s: %s", s.task.saved.Endpoint, st.Wait.Round(time.Second), st.Reason)
		return
	}
	s.task.event("Waiting at endpoint %s: %s", s.task.saved.Endpoint, st.Reason)
}

// failed makes a start's error one that Nomad tries again, where that may help.
func (s *start) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = briefError{err}
	if errors.Is(err, endpoint.ErrUnreachable) || errors.Is(err, endpoint.ErrUnprepared) ||
		errors.Is(err, endpoint.ErrTemporary) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errFull) {
		return recoverable("failed to start the task at endpoint %s: %w", s.task.saved.Endpoint, err)
	}
	return fmt.Errorf("failed to start the task at endpoint %s: %w", s.task.saved.Endpoint, err)
}

// look learns what the plan decides by. Nomad and the endpoint are asked at the same time.
func (s *start) look(ctx context.Context) (*situation, error) {
	e, t := s.task.engine, s.task
	me := make(chan Alloc, 1)
	go func() { me <- e.alloc(ctx, t.saved.Asker, t.saved.Owner) }()
	records, err := retried(ctx, func(ctx context.Context) ([]*endpoint.Record, error) { return list(ctx, t.ep) })
	mine := <-me
	if err != nil {
		return nil, err
	}
	if mine.Region != "" && mine.Region != t.saved.Key.Region {
		return nil, fmt.Errorf("NOMAD_REGION is %q in its environment, and the job's region is %s: the job or a template "+
			"sets a variable of Nomad's", t.saved.Key.Region, mine.Region)
	}
	if mine.Job != endpoint.Unknown {
		s.job = mine
	}
	if s.job.Job == endpoint.System || s.job.Job == endpoint.SysBatch {
		t.saved.Key.Node = t.saved.Owner.Node
	}
	look := &situation{
		Key: t.saved.Key, Hash: s.payload.hash, Files: s.payload.files, Owner: t.saved.Owner, Records: records,
		Allocs: map[string]Alloc{t.saved.Owner.Alloc: mine}, Lease: e.o.Lease,
		Restart: s.want.Restart, Max: s.want.MaxTasks, Told: e.wasTold, Ends: e.unfinished(t.saved.Endpoint),
		Unseen: e.hasUnseen(t.run()), Waited: s.waited,
	}
	e.askOwners(ctx, look, t.saved.Asker)
	return look, nil
}

// askOwners asks for the owners of the objects of the key, and of those that may be under another name of
// the cluster, all at the same time.
func (e *Engine) askOwners(ctx context.Context, s *situation, a Asker) {
	var mu sync.Mutex
	var group sync.WaitGroup
	asked := map[string]bool{"": true, s.Owner.Alloc: true}
	records := s.Records
	if s.Waited != nil {
		records = append(slices.Clip(records), s.Waited)
	}
	for _, r := range records {
		id := r.Owner.Alloc
		ask := e.alloc
		if s.renamed(r) {
			ask = e.o.Cluster.Alloc // the cluster's name proves nothing
		} else if !s.ofKey(r) {
			continue
		}
		if asked[id] {
			continue
		}
		asked[id] = true
		group.Go(func() {
			o := ask(ctx, a, r.Owner)
			mu.Lock()
			defer mu.Unlock()
			s.Allocs[id] = o
		})
	}
	group.Wait()
}

// create makes an object and runs it.
func (s *start) create(ctx context.Context, look *situation, st step) (*endpoint.Record, error) {
	t := s.task
	r := &endpoint.Record{
		Name: st.Name, Key: t.saved.Key, Hash: s.payload.hash, Epoch: 1, Owner: t.saved.Owner,
		State: endpoint.Starting, Job: s.job.Job, JobIndex: s.job.Index, Reason: st.Reason,
		Orphan: s.want.Orphan, Kill: s.want.Kill,
	}
	err := limited(ctx, callTime, func(ctx context.Context) error { return t.ep.Create(ctx, r) })
	if errors.Is(err, endpoint.ErrUnreachable) {
		return nil, endpoint.ErrEpoch // whether it was made shows
	}
	if err != nil {
		return nil, err
	}
	t.engine.sees(t.run(), false)
	return s.begin(ctx, r, look.Max)
}

// begin runs an object that this start owns, and that never ran, if it has its place alone. Otherwise it is removed.
func (s *start) begin(ctx context.Context, r *endpoint.Record, most int) (*endpoint.Record, error) {
	err := s.only(ctx, r.Name)
	if err == nil && most > 0 { // another start may have seen the same free place
		err = s.place(ctx, r, most)
	}
	if err != nil {
		rerr := limited(ctx, callTime, func(ctx context.Context) error { return s.task.ep.Remove(ctx, r.Ref()) })
		if rerr == nil {
			s.task.engine.sees(s.task.run(), true)
		}
		return nil, errors.Join(err, rerr)
	}
	return s.launch(ctx, r.Ref())
}

// only looks for another allocation's object of the task, after this one's was created: another configuration of the
// task has another name, and its start may have created it at the same time. Of the two starts the one with the lower
// name waits until the other has given way. It returns ErrEpoch if this one has to.
func (s *start) only(ctx context.Context, name string) error {
	for range 10 {
		look, err := s.look(ctx)
		if err != nil {
			return err
		}
		_, wanted := look.wanted()
		_, others := look.ofTask()
		st, ok := look.others(others)
		switch {
		case wanted && !ok:
			return nil
		case !wanted, st.Do != wait, st.Record.State != endpoint.Starting, st.Record.Name < name:
			return endpoint.ErrEpoch
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return endpoint.ErrEpoch
}

// place is an error if the object is not among the first that there are places for.
func (s *start) place(ctx context.Context, mine *endpoint.Record, most int) error {
	records, err := list(ctx, s.task.ep)
	if err != nil {
		return err
	}
	before := 0
	for _, r := range records {
		if r.Name == mine.Name {
			mine = r
		}
	}
	for _, r := range records {
		earlier := r.Created.Before(mine.Created) || r.Created.Equal(mine.Created) && r.Name < mine.Name
		if r.State != endpoint.Exited && earlier {
			before++
		}
	}
	if before >= most {
		return fmt.Errorf("%w: %d of at most %d (max_tasks)", errFull, before, most)
	}
	return nil
}

var errFull = errors.New("the endpoint has no place for another task")

// adopt takes an object over. One that was never run is run.
func (s *start) adopt(ctx context.Context, st step) (*endpoint.Record, error) {
	t := s.task
	r, err := take(ctx, t.ep, st.Record.Ref(), t.saved.Owner)
	if errors.Is(err, endpoint.ErrUnreachable) {
		return nil, endpoint.ErrEpoch // whether it was taken shows: then this allocation is the owner
	}
	if err != nil {
		return nil, err
	}
	t.engine.sees(t.run(), false)
	switch r.State {
	case endpoint.Starting:
		return s.begin(ctx, r, 0)
	case endpoint.Exited:
		t.event("Took over object %s of endpoint %s, which has ended: %s", r.Name, t.saved.Endpoint, st.Reason)
		return r, nil
	}
	defer t.engine.keepAlive(ctx, t.ep, r.Ref())() // many files may take minutes
	_, err = retried(ctx, func(ctx context.Context) (none struct{}, err error) {
		return none, limited(ctx, copyTime, func(ctx context.Context) error { return t.put(ctx, r.Ref()) })
	})
	if err != nil {
		t.event("The files of this allocation could not be copied to the task that runs: %v", err)
	}
	t.event("Took over the running object %s of endpoint %s: %s", r.Name, t.saved.Endpoint, st.Reason)
	return r, nil
}

// launch copies files and runs the program of an object that this start owns.
func (s *start) launch(ctx context.Context, ref endpoint.Ref) (*endpoint.Record, error) {
	t := s.task
	defer t.engine.keepAlive(ctx, t.ep, ref)() // an image may take minutes
	r, err := retried(ctx, func(ctx context.Context) (r *endpoint.Record, err error) {
		err = limited(ctx, copyTime, func(ctx context.Context) error {
			err := t.ep.Prepare(ctx, ref, s.payload.spec, func(message string) { t.event("%s", message) })
			if err == nil {
				err = t.put(ctx, ref)
			}
			return err
		})
		if err == nil {
			err = limited(ctx, startTime, func(ctx context.Context) (err error) {
				r, err = t.ep.Start(ctx, ref, s.payload.spec)
				return err
			})
		}
		return r, err
	})
	switch {
	case err == nil:
		if why := r.More["limits"]; why != "" { // as one that asked for none
			t.event("Warning: limits of resources at endpoint %s are %s", t.saved.Endpoint, why)
		}
		return r, nil
	case ctx.Err() != nil, errors.Is(err, endpoint.ErrUnreachable), errors.Is(err, endpoint.ErrEpoch),
		errors.Is(err, endpoint.ErrUnprepared):
		return nil, err // it may run: the next start of this allocation resumes it
	}
	ctx, cancel := context.WithTimeout(t.engine.ctx, callTime)
	defer cancel()
	if rerr := t.ep.Remove(ctx, ref); rerr != nil {
		t.engine.o.Logger.Warn("an object that failed to start is left to the reaper", "object", ref.Name, "error", rerr)
	} else {
		t.engine.sees(t.run(), true)
	}
	return nil, err
}

// endObject ends an object for good: it is taken over, so that nobody else adopts what is
// about to stop, and removed. It can be called again when it was interrupted.
func (e *Engine) endObject(
	ctx context.Context, ep endpoint.Endpoint, r *endpoint.Record, o endpoint.Owner, reason string,
) error {
	o.TaskID = ending + o.TaskID
	r, err := take(ctx, ep, r.Ref(), o)
	if err != nil {
		return err
	}
	if r.State != endpoint.Exited && r.State != endpoint.Starting {
		sctx, cancel := context.WithTimeout(ctx, r.Kill.Grace+endMargin)
		defer cancel()
		defer e.keepAlive(sctx, ep, r.Ref())()
		if r, err = ep.Stop(sctx, r.Ref(), r.Kill.Signal, r.Kill.Grace, reason); err != nil {
			return err
		}
	}
	return limited(ctx, startTime, func(ctx context.Context) error { return ep.Remove(ctx, r.Ref()) })
}

// keepAlive renews the lease during a call that may last longer, until stop is called.
func (e *Engine) keepAlive(ctx context.Context, ep endpoint.Endpoint, ref endpoint.Ref) (stop func()) {
	going, stop := context.WithCancel(ctx)
	go func() {
		for sleep(going, e.o.Lease/3) == nil {
			// the next start sees it if it fails; one under way is not cut off
			_ = limited(ctx, e.o.Lease, func(ctx context.Context) error { return ep.Renew(ctx, ref, endpoint.Mutable{}) })
		}
	}()
	return stop
}
