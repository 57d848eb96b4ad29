// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// side is a connection of a node to the host. Locks belong to open files, so two sides in one process exclude each
// other like two processes.
type side struct {
	*runs
	t    *testing.T
	node string
}

func sides(t *testing.T, n int) (all []side) {
	dir := t.TempDir()
	for i := range n {
		all = append(all, side{newRuns(dir), t, fmt.Sprintf("node-%d", i+1)})
	}
	return all
}

// request returns an allocation's claim. All allocations are of the same job.
func (s side) request(alloc string, change ...func(*ClaimRequest)) *ClaimRequest {
	q := &ClaimRequest{
		Key: "job", Hash: "content", TaskID: alloc + "/task", Reattach: true,
		Owner: Owner{AllocID: alloc, NodeID: s.node},
	}
	for _, c := range change {
		c(q)
	}
	return q
}

// resume makes a claim resume the run that allocation a has started.
func resume(q *ClaimRequest)  { q.Resume, q.TaskID = true, "a/task" }
func wanted(q *ClaimRequest)  { q.Wanted = true }
func restart(q *ClaimRequest) { q.Reattach = false }
func updated(q *ClaimRequest) { q.Hash = "new content" }

func gone(alloc string) func(*ClaimRequest) {
	return func(q *ClaimRequest) { q.Gone = append(q.Gone, alloc) }
}

func alive(alloc string) func(*ClaimRequest) {
	return func(q *ClaimRequest) { q.Alive = append(q.Alive, alloc) }
}

// ask claims the task's run, and like the host, ends the runs that must end first. Its result is for example "ended a,
// start b": the ended runs, the verdict, and the allocation that the run was started for.
func (s side) ask(alloc string, change ...func(*ClaimRequest)) string {
	s.t.Helper()
	said := ""
	for {
		reply, over, err := s.claim(s.request(alloc, change...))
		must.NoError(s.t, err)
		if len(over) == 0 {
			allocID, _ := partsOf(reply.TaskID)
			return said + reply.Verdict + " " + allocID + reply.held()
		}
		for _, o := range over {
			allocID, _ := partsOf(o.TaskID)
			said += "ended " + allocID + ", "
			must.NoError(s.t, s.runs.end(o.TaskID))
		}
	}
}

func (r *ClaimReply) held() string {
	if r.Verdict == Held || r.Verdict == Doubtful {
		return "by " + r.Owner.AllocID
	}
	return ""
}

// start claims a run and starts it.
func (s side) start(alloc string, change ...func(*ClaimRequest)) {
	s.t.Helper()
	must.Eq(s.t, Start+" "+alloc, s.ask(alloc, change...))
	must.NoError(s.t, s.started(alloc+"/task", nil))
}

func (s side) seize(q *ChangeRequest) error {
	_, err := s.runs.seize(q)
	return err
}

func (s side) ends(task string) {
	s.t.Helper()
	must.NoError(s.t, s.runs.end(task))
}

// leave ends the connection.
func (s side) leave() {
	for id := range s.claims {
		s.drop(id)
	}
}

// wait adds an hour to the time that each run has been without an owner, if the host has begun to measure that time.
func (s side) wait() {
	s.t.Helper()
	must.NoError(s.t, s.locked("", func(all records) error {
		for name := range all {
			info, err := os.Stat(s.lockOf(name))
			must.NoError(s.t, err)
			if info.ModTime().UnixNano() != 0 {
				must.NoError(s.t, os.Chtimes(s.lockOf(name), time.Time{}, info.ModTime().Add(-time.Hour)))
			}
		}
		return nil
	}))
}

func (s side) releases(alloc, task string) {
	s.t.Helper()
	must.NoError(s.t, s.become(task, alloc, Released))
}

func TestRuns_AreClaimedByOneAllocation(t *testing.T) {
	for name, row := range map[string]func(t *testing.T, a, b side){
		"a claim on the owning connection writes nothing": func(t *testing.T, a, _ side) {
			a.start("a")
			record := filepath.Join(a.dir, nameOf("job", "content")+".json")
			before, err := os.Stat(record)
			must.NoError(t, err)
			must.Eq(t, "have a", a.ask("a", resume))
			after, err := os.Stat(record)
			must.NoError(t, err)
			must.True(t, os.SameFile(before, after))
			must.NoError(t, a.become("a/task", "a", Stopping))
		},
		"a released run is taken over immediately": func(t *testing.T, a, b side) {
			a.start("a")
			a.releases("a", "a/task")
			must.Eq(t, "have a", b.ask("b"))
			must.ErrorIs(t, a.check("a/task"), errNotOwner)
			must.ErrorIs(t, a.become("a/task", "a", Stopping), errNotOwner)
			must.NoError(t, b.check("a/task"))
			must.Eq(t, "held by b", a.ask("a", resume))
			b.releases("b", "a/task")
			must.Eq(t, "have a", a.ask("a", resume)) // as if allocation a has reconnected and replaces b
		},
		"a missing run has no owner": func(t *testing.T, a, _ side) {
			must.ErrorIs(t, a.check("a/task"), errNotOwner)
			must.ErrorIs(t, a.become("a/task", "a", Stopping), errNotOwner)
		},
		"a followed run is held": func(t *testing.T, a, b side) {
			a.start("a")
			must.Eq(t, "held by a", b.ask("b"))
			b.wait()
			must.Eq(t, "held by a", b.ask("b"))
		},
		"a run whose owner has ended, according to Nomad, is taken over immediately": func(t *testing.T, a, b side) {
			a.start("a")
			must.Eq(t, "have a", b.ask("b", gone("a")))
			must.ErrorIs(t, a.check("a/task"), errNotOwner)
		},
		"a run without a follower is taken over after a time": func(t *testing.T, a, b side) {
			a.start("a")
			a.leave()
			must.Eq(t, "held by a", b.ask("b"))
			b.wait()
			must.Eq(t, "have a", b.ask("b"))
		},
		"on_lost restart ends the run": func(t *testing.T, a, b side) {
			a.start("a")
			a.leave()
			must.Eq(t, "ended a, start b", b.ask("b", restart, gone("a")))
		},
		"an allocation finds its own run again": func(t *testing.T, a, b side) {
			a.start("a")
			must.Eq(t, "have a", a.ask("a"))
			a.leave()
			must.Eq(t, "have a", b.ask("a")) // b is another connection of a's node
			must.ErrorIs(t, a.check("a/task"), errNotOwner)
		},
		"a run whose start was interrupted is ended": func(t *testing.T, a, b side) {
			must.Eq(t, "start a", a.ask("a"))
			must.Eq(t, "held by a", b.ask("b", gone("a"))) // the task may start at any moment
			must.Eq(t, "held by a", b.ask("b", updated, gone("a")))
			must.Eq(t, "held by a", b.ask("a")) // b is another connection of a's node
			a.leave()
			must.Eq(t, "ended a, start b", b.ask("b", gone("a")))
			must.ErrorIs(t, a.started("a/task", nil), errNotOwner)
		},
		"an allocation restarts its own interrupted start under the new id": func(t *testing.T, a, b side) {
			must.Eq(t, "start a", a.ask("a"))
			again := func(q *ClaimRequest) { q.TaskID = "a/again" }
			must.Eq(t, "held by a", b.ask("a", again))
			a.leave()
			must.Eq(t, "start a", b.ask("a", again)) // StartTask recovers the task if it did start
			must.NoError(t, b.started("a/again", nil))
			must.ErrorIs(t, b.check("a/task"), errNotOwner)
			must.Eq(t, "have a", b.ask("a", resume, again))
		},
		"a claim waits for a run that is being stopped": func(t *testing.T, a, b side) {
			a.start("a")
			must.NoError(t, a.become("a/task", "a", Stopping))
			must.Eq(t, "held by a", b.ask("b"))
			a.ends("a/task")
			must.Eq(t, "start b", b.ask("b"))
		},
		"a claim waits for a run that its owner stops, even if the owner has ended": func(t *testing.T, a, b side) {
			a.start("a")
			must.NoError(t, a.become("a/task", "a", Stopping))
			must.Eq(t, "held by a", b.ask("b", gone("a")))
			must.Eq(t, "held by a", b.ask("b", updated, gone("a")))
			a.leave()
			must.Eq(t, "held by a", b.ask("b", updated, gone("a")))
			b.wait()
			must.Eq(t, "ended a, start b", b.ask("b", updated, gone("a")))
		},
		"a stop survives its connection": func(t *testing.T, a, b side) {
			a.start("a")
			must.NoError(t, a.become("a/task", "a", Stopping))
			a.leave()
			_, err := b.orphans()
			must.NoError(t, err)
			b.wait()
			over, err := b.orphans()
			must.NoError(t, err)
			must.SliceEmpty(t, over)
			must.Eq(t, "have a", b.ask("a", resume))
		},
		"a run that was ended for another allocation belongs to that allocation": func(t *testing.T, a, b side) {
			a.start("a")
			must.Eq(t, "ended a, start b", b.ask("b", updated, gone("a")))
			must.Eq(t, "held by b", a.ask("a", resume))
		},
		"a run with other contents keeps running while its owner is alive": func(t *testing.T, a, b side) {
			a.start("a")
			must.Eq(t, "doubtful by a", b.ask("b", updated))
			must.Eq(t, "start b", b.ask("b", updated, alive("a")))
			must.NoError(t, a.check("a/task"))
			a.releases("a", "a/task")
		},
		"a run with other contents is ended when it is released": func(t *testing.T, a, b side) {
			a.start("a")
			a.releases("a", "a/task")
			must.Eq(t, "ended a, start b", b.ask("b", updated))
		},
		"a claim with other contents needs the owner's state in Nomad": func(t *testing.T, a, b side) {
			a.start("a")
			a.leave()
			must.Eq(t, "doubtful by a", b.ask("b", updated))
			must.Eq(t, "start b", b.ask("b", updated, alive("a")))
			b.ends("b/task")
			must.Eq(t, "ended a, start b", b.ask("b", updated, gone("a")))
		},
		"a claim with other contents ends a lost owner's run, even if the node is connected": func(t *testing.T, a, b side) {
			a.start("a")
			must.Eq(t, "ended a, start b", b.ask("b", updated, gone("a")))
		},
		"an interrupted end is repeated": func(t *testing.T, a, b side) {
			a.start("a")
			_, over, err := b.claim(b.request("b", updated, gone("a")))
			must.NoError(t, err)
			must.Len(t, 1, over)
			must.Eq(t, "ended a, start b", b.ask("b", updated))
		},
		"an allocation's own run with other contents is ended": func(t *testing.T, a, b side) {
			a.start("a")
			must.Eq(t, "ended a, start a", a.ask("a", updated))
		},
		"an allocation's own released run is ended and started again": func(t *testing.T, a, b side) {
			a.start("a")
			a.releases("a", "a/task")
			must.Eq(t, "ended a, start a", a.ask("a"))
		},
		"a run is not taken over while its owner is alive, according to Nomad": func(t *testing.T, a, b side) {
			a.start("a")
			a.leave()
			must.Eq(t, "held by a", b.ask("b", alive("a")))
			b.wait()
			must.Eq(t, "held by a", b.ask("b", alive("a")))
		},
		"a lock of an earlier owner is ignored": func(t *testing.T, a, b side) {
			a.start("a")
			must.Eq(t, "have a", b.ask("b", gone("a")))
			b.leave() // side a still holds its lock
			must.Eq(t, "held by b", a.ask("c"))
			a.wait()
			must.Eq(t, "have a", a.ask("c"))
		},
		"an allocation that has lost its task starts it only if Nomad wants that": func(t *testing.T, a, b side) {
			a.start("a")
			a.leave()
			must.Eq(t, "have a", b.ask("b", gone("a")))
			must.Eq(t, "have a", b.ask("c", gone("b")))
			b.ends("a/task") // the task has completed
			must.Eq(t, "none ", a.ask("a", resume))
			must.Eq(t, "held by b", a.ask("a"))
			must.Eq(t, "held by b", a.ask("a", updated))
			must.Eq(t, "held by c", a.ask("b"))
			a.start("a", wanted)
			must.Eq(t, "ended a, start d", b.ask("d", updated, gone("a")))
			b.ends("d/task")
			must.Eq(t, "held by d", a.ask("a"))
			a.start("a", wanted)
			a.ends("a/task")
			a.start("a") // a restart
		},
		"an allocation that gets its task back may start it again": func(t *testing.T, a, b side) {
			a.start("a")
			a.releases("a", "a/task")
			must.Eq(t, "have a", b.ask("b"))
			b.releases("b", "a/task")
			must.Eq(t, "have a", a.ask("a", resume))
			a.ends("a/task")
			a.start("a")
			a.ends("a/task")
			must.Eq(t, "held by a", b.ask("b"))
		},
		"a claim that has to wait ends nothing": func(t *testing.T, a, b side) {
			a.start("a")
			b.start("b", updated, alive("a"))
			for _, hash := range []string{"new content", "newer content"} {
				_, over, err := a.claim(a.request("c", func(q *ClaimRequest) { q.Hash = hash }, gone("a")))
				must.NoError(t, err)
				must.SliceEmpty(t, over)
			}
		},
		"a resume does not claim a run of another owner": func(t *testing.T, a, b side) {
			a.start("a")
			must.Eq(t, "ended a, start b", b.ask("b", restart, gone("a")))
			must.NoError(t, b.started("b/task", nil))
			b.releases("b", "b/task")
			must.Eq(t, "held by b", a.ask("a", resume))
			must.Eq(t, "have b", a.ask("c"))
		},
		"a run that is being stopped is not released": func(t *testing.T, a, b side) {
			a.start("a")
			must.NoError(t, a.become("a/task", "a", Stopping))
			must.ErrorIs(t, a.become("a/task", "a", Released), errNotOwner)
		},
		"a kept run cannot be claimed until it is released": func(t *testing.T, a, b side) {
			give := func(epoch int64, s State) error {
				return b.assign(&ChangeRequest{TaskID: "a/task", Epoch: epoch, State: s})
			}
			a.start("a")
			must.ErrorIs(t, give(1, Kept), errNotOwner) // its owner is connected
			a.leave()
			must.ErrorIs(t, give(2, Kept), errNotOwner) // not the epoch of the last claim, which is 1
			must.NoError(t, give(1, Kept))
			b.wait()
			must.ErrorIs(t, b.seize(&ChangeRequest{TaskID: "a/task", Epoch: 2}), errNotOwner)
			over, err := b.orphans()
			must.NoError(t, err)
			must.SliceEmpty(t, over)
			must.Eq(t, "held by operator", a.ask("a", resume))
			must.Eq(t, "held by operator", b.ask("b", gone("a")))
			must.Eq(t, "held by operator", b.ask("b", updated, gone("a"), gone(Operator)))
			must.NoError(t, give(2, Released))
			must.Eq(t, "have a", b.ask("b"))
			must.NoError(t, b.become("a/task", "b", Stopping))
			b.leave()
			must.ErrorIs(t, give(4, Kept), errNotOwner) // it is being stopped
		},
		"an unreadable record blocks only its own task, and the end of unknown tasks": func(t *testing.T, a, b side) {
			a.start("a")
			must.NoError(t, os.WriteFile(filepath.Join(a.dir, nameOf("other", "x")+".json"), []byte("{"), 0o600))
			_, err := b.orphans()
			must.NoError(t, err)
			must.Eq(t, "have a", b.ask("b", gone("a")))
			_, _, err = b.claim(b.request("b", func(q *ClaimRequest) { q.Key = "other" }))
			must.ErrorContains(t, err, "failed to read the record")
			must.NoError(t, b.seize(&ChangeRequest{TaskID: "a/task", AllocID: "b"}))
			err = b.seize(&ChangeRequest{TaskID: "unknown/task", AllocID: "unknown"})
			must.ErrorContains(t, err, "failed to read the record")
		},
		"a resume starts nothing": func(t *testing.T, a, b side) {
			must.Eq(t, "none ", a.ask("a", resume))
			b.start("b")
			must.Eq(t, "held by b", a.ask("a", resume, gone("b")))
		},
		"a run that was handed over is not ended by its first allocation": func(t *testing.T, a, b side) {
			first := &ChangeRequest{TaskID: "a/task", AllocID: "a"}
			a.start("a")
			must.NoError(t, b.seize(first))
			b.ends("a/task")
			a.start("a")
			a.releases("a", "a/task")
			must.ErrorIs(t, b.seize(first), errNotOwner)
			must.Eq(t, "have a", b.ask("b"))
			must.ErrorIs(t, a.seize(first), errNotOwner)
		},
	} {
		t.Run(name, func(t *testing.T) {
			both := sides(t, 2)
			row(t, both[0], both[1])
		})
	}
}

func TestRuns_EndAfterTheirOrphanTimeout(t *testing.T) {
	both := sides(t, 2)
	a, b := both[0], both[1]
	a.start("a", func(q *ClaimRequest) { q.OrphanTimeout = 90 * time.Minute })
	over := func() int {
		found, err := b.orphans()
		must.NoError(t, err)
		return len(found)
	}
	must.Zero(t, over())
	b.wait()
	must.Zero(t, over(), must.Sprint("its owner is connected"))
	a.releases("a", "a/task")
	must.Zero(t, over(), must.Sprint("it was released just now"))
	b.wait()
	must.Zero(t, over(), must.Sprint("its time is not over"))
	b.wait()
	must.Eq(t, 1, over())
	must.Zero(t, over(), must.Sprint("it is being ended"))
	b.wait()
	must.Eq(t, 1, over(), must.Sprint("its end has failed: the next attempt comes sooner"))
	must.Eq(t, "ended a, start c", a.ask("c", updated))
	must.NoError(t, a.started("c/task", nil)) // a run without an OrphanTimeout
	a.leave()
	must.Zero(t, over())
	b.wait()
	must.Zero(t, over())
}

func TestRuns_ListingThemChangesNothing(t *testing.T) {
	both := sides(t, 2)
	a, b := both[0], both[1]
	look := func() Run {
		found, err := b.list()
		must.NoError(t, err)
		must.SliceLen(t, 1, found)
		return found[0]
	}
	a.start("a", func(q *ClaimRequest) { q.OrphanTimeout = time.Hour })
	want := Run{
		TaskID: "a/task", Key: "job", Epoch: 1, State: Running, Followed: true, OrphanTimeout: time.Hour,
		Owner: Owner{AllocID: "a", NodeID: "node-1"},
	}
	must.Eq(t, want, look())
	a.leave()
	want.Followed = false
	must.Eq(t, want, look())
	b.wait()
	must.Eq(t, want, look(), must.Sprint("list does not start the time"))

	_, err := b.orphans()
	must.NoError(t, err)
	b.wait()
	must.GreaterEq(t, time.Hour, look().Alone)
	must.LessEq(t, 2*time.Hour, look().Alone)
}

func TestRuns_OnlyUnfollowedRunsCanBeSeized(t *testing.T) {
	both := sides(t, 2)
	a, b := both[0], both[1]
	ends := func(epoch int64) error { return b.seize(&ChangeRequest{TaskID: "a/task", Epoch: epoch}) }
	a.start("a")
	must.ErrorIs(t, ends(1), errNotOwner, must.Sprint("its owner is connected"))
	a.releases("a", "a/task")
	must.ErrorIs(t, ends(1), errNotOwner, must.Sprint("it was released just now"))
	must.Eq(t, "have a", a.ask("c"))
	a.releases("c", "a/task")
	must.ErrorIs(t, ends(2), errNotOwner, must.Sprint("it was released just now"))
	b.wait()
	must.ErrorIs(t, ends(1), errNotOwner, must.Sprint("it was claimed since"))
	must.NoError(t, ends(2))
}

// Two allocations of a node share a connection, so a change by the first may arrive after a claim by the second.
func TestRuns_ChangeByAnEarlierClaimIsRefused(t *testing.T) {
	s := sides(t, 1)[0]
	s.start("a")
	must.Eq(t, "have a", s.ask("b", gone("a")))
	for _, state := range []State{Released, Stopping} {
		must.ErrorIs(t, s.become("a/task", "a", state), errNotOwner, must.Sprint(state))
	}
	must.Eq(t, "held by b", s.ask("c"))
	s.releases("b", "a/task")
	must.Eq(t, "have a", s.ask("c"))
}

func TestRuns_HaveOneOwnerWhenManyClaim(t *testing.T) {
	all := sides(t, 3)
	all[0].start("first")
	all[0].releases("first", "first/task")
	for round := range 50 {
		var wins sync.Map
		var wait sync.WaitGroup
		for _, s := range all {
			wait.Go(func() {
				alloc := fmt.Sprintf("%s-%d", s.node, round)
				reply, over, err := s.claim(s.request(alloc))
				must.NoError(t, err)
				must.SliceEmpty(t, over)
				if reply.Verdict == Have {
					wins.Store(alloc, s)
				}
			})
		}
		wait.Wait()
		count := 0
		wins.Range(func(alloc, s any) bool {
			count++
			s.(side).releases(alloc.(string), "first/task")
			return true
		})
		must.Eq(t, 1, count, must.Sprintf("owners in round %d", round))
	}
}

func TestRuns_AreReadableOnlyByThePluginsUser(t *testing.T) {
	s := sides(t, 1)[0]
	s.start("a")
	got, _ := mode(t, s.dir)
	must.Eq(t, 0o700, got)
	files, err := filepath.Glob(filepath.Join(s.dir, "*"))
	must.NoError(t, err)
	must.Len(t, 3, files) // the record, its lock, and the lock of all records
	for _, file := range files {
		got, _ := mode(t, file)
		must.Eq(t, 0o600, got, must.Sprint(file))
	}
}

// Nomad's calls name only the task, so the host must check whether the connection has claimed its run.
func TestHost_RefusesCallsWithoutAClaim(t *testing.T) {
	both := sides(t, 2)
	both[0].start("a")
	type ofTask interface{ GetTaskId() string }
	for owner, s := range both {
		h := &host{runs: s.runs}
		for _, request := range []ofTask{
			&proto.StopTaskRequest{TaskId: "a/task"}, &proto.SignalTaskRequest{TaskId: "a/task"},
			&proto.ExecTaskRequest{TaskId: "a/task"}, &proto.DestroyTaskRequest{TaskId: "a/task"},
		} {
			_, err := h.ofOwner(t.Context(), request, nil, func(context.Context, any) (any, error) { return nil, nil })
			if owner == 0 {
				must.NoError(t, err, must.Sprintf("%T", request))
			} else {
				must.Eq(t, codes.FailedPrecondition, status.Code(err), must.Sprintf("%T", request))
			}
		}
		_, err := h.ofOwner(t.Context(), &proto.InspectTaskRequest{TaskId: "a/task"}, nil,
			func(context.Context, any) (any, error) { return nil, nil })
		must.NoError(t, err)
		if owner == 1 {
			must.Error(t, h.ExecTaskStreamingRaw(t.Context(), "a/task", nil, false, nil))
		}
	}
}
