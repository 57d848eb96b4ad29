// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"testing"
	"time"

	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The one who starts in the table is alloc-b on node-b, with this hash.
const (
	hashB = "bbbbbbbbbbbbbbbb"
	hashA = "aaaaaaaaaaaaaaaa"
)

var keyOf = endpoint.Key{Region: "global", Namespace: "default", Job: "job", Group: "group", Task: "echo"}

// object is one of the key, by alloc-a on node-a with B's hash, which runs under a valid lease.
func object(edit ...func(*endpoint.Record)) *endpoint.Record {
	r := &endpoint.Record{
		Name: keyOf.Name(hashB), Key: keyOf, Hash: hashB, Epoch: 1, State: endpoint.Running, Lease: 20 * time.Second,
		Owner: endpoint.Owner{Alloc: "alloc-a", Node: "node-a", TaskID: "alloc-a/echo/1"},
	}
	for _, f := range edit {
		f(r)
	}
	return r
}

func in(s endpoint.State) func(*endpoint.Record) { return func(r *endpoint.Record) { r.State = s } }

func by(alloc, node string) func(*endpoint.Record) {
	return func(r *endpoint.Record) {
		r.Owner = endpoint.Owner{Alloc: alloc, Node: node, TaskID: alloc + "/echo/1"}
	}
}

func otherHash(r *endpoint.Record) { r.Name, r.Hash = keyOf.Name(hashA), hashA }
func expired(r *endpoint.Record)   { r.Lease = -time.Second }
func givenUp(r *endpoint.Record)   { r.GivenUp = true }
func told(r *endpoint.Record)      { r.Told = true }
func beingEnded(r *endpoint.Record) {
	r.Owner = endpoint.Owner{Node: "node-c", TaskID: ending + "reaper"}
}
func exited(r *endpoint.Record) { r.State, r.Exit, r.Lease = endpoint.Exited, &task.Exit{Code: 3}, 0 }
func long(r *endpoint.Record)   { r.Age = time.Hour }
func otherCluster(r *endpoint.Record) {
	r.Key.Cluster = "x"
	r.Name = r.Key.Name(hashB)
}
func unlike(r *endpoint.Record) { r.Key.Job, r.Name = "other", "nomad-other" }

func ofJob(index uint64) func(*endpoint.Record) {
	return func(r *endpoint.Record) { r.JobIndex = index }
}

// indexed is an allocation of a job with this CreateIndex.
func indexed(index uint64) Alloc { return Alloc{State: Alive, Wanted: true, Index: index} }

// facts about alloc-b and alloc-a.
func nomadSays(b, a Alloc) map[string]Alloc { return map[string]Alloc{"alloc-b": b, "alloc-a": a} }

func TestPlan_DecidesEachStart(t *testing.T) {
	canary := Alloc{State: Alive, Wanted: true, Canary: true}
	leaving := Alloc{State: Alive}
	lost := Alloc{State: Ended, Lost: true}
	complete := Alloc{State: Ended, Told: true}
	type records = []*endpoint.Record
	type row struct {
		records records
		nomad   map[string]Alloc
		edit    func(*situation)
		want    action
		object  string // the name of what is created; otherwise the record's
		wait    time.Duration
	}
	plain, suffixed := keyOf.Name(hashB), keyOf.Name(hashB)+"-alloc-b"
	for name, c := range map[string]row{
		"nothing is there":      {nomad: nomadSays(alive, Alloc{}), want: create, object: plain},
		"nothing, and no API":   {want: create, object: plain},
		"another task's object": {records: records{object(unlike)}, want: create, object: plain},
		"an older index": {
			records: records{object(func(r *endpoint.Record) { r.Key.Index = 1 })},
			want:    create, object: plain + "-alloc-b",
		},
		"another cluster's": {
			records: records{object(unlike, func(r *endpoint.Record) { r.Key = keyOf; r.Key.Cluster = "x" })},
			want:    create, object: plain,
		},
		"this cluster's, under another name": {
			records: records{object(otherCluster)},
			nomad:   nomadSays(alive, lost), want: refuse,
		},
		"another cluster's that nobody here knows": {
			records: records{object(otherCluster)},
			nomad:   nomadSays(alive, Alloc{State: Foreign}), want: create, object: plain,
		},
		"this cluster's, under another name, has ended": {
			records: records{object(otherCluster, exited)},
			nomad:   nomadSays(alive, lost), want: create, object: plain,
		},
		"released": {
			records: records{object(in(endpoint.Released), givenUp)},
			nomad:   nomadSays(alive, complete), want: adopt,
		},
		"released, and no API": {records: records{object(in(endpoint.Released), givenUp)}, want: adopt},
		"released, on_lost = restart": {
			records: records{object(in(endpoint.Released), givenUp)},
			edit:    restart, want: adopt,
		},
		"released long ago by an allocation that is gone": {
			records: records{object(in(endpoint.Released), givenUp, long)},
			nomad:   nomadSays(alive, Alloc{State: NotFound}), want: adopt,
		},

		"owner lost": {
			records: records{object()},
			nomad:   nomadSays(alive, lost), want: adopt,
		},
		"owner lost, on_lost = restart": {
			records: records{object()},
			nomad:   nomadSays(alive, lost), edit: restart, want: end,
		},
		"owner failed, its task runs": {
			records: records{object()},
			nomad:   nomadSays(alive, complete), want: adopt,
		},
		"owner was stopped, its task runs": { // the endpoint could not be reached
			records: records{object()},
			nomad:   nomadSays(alive, Alloc{State: Ended, Told: true, Stopped: true}), want: end,
		},
		"owner was stopped, its task never ran": {
			records: records{object(in(endpoint.Starting))},
			nomad:   nomadSays(alive, Alloc{State: Ended, Told: true, Stopped: true}), want: end,
		},
		"owner is to be stopped": {
			records: records{object()},
			nomad:   nomadSays(alive, Alloc{State: Alive, Stopped: true}), want: wait,
		},
		"owner was stopped, and has released it": {
			records: records{object(in(endpoint.Released), givenUp)},
			nomad:   nomadSays(alive, Alloc{State: Ended, Told: true, Stopped: true}), want: adopt,
		},
		"no API, this process could not stop it": {
			records: records{object(expired)},
			edit:    func(s *situation) { s.Ends = []string{plain} }, want: end,
		},
		"owner disconnected": {
			records: records{object()},
			nomad:   nomadSays(alive, Alloc{State: Disconnected, Wanted: true}), want: adopt,
		},
		"owner not found": {
			records: records{object()},
			nomad:   nomadSays(alive, Alloc{State: NotFound}), want: adopt,
		},
		"owner and its node are unknown": {
			records: records{object(expired)},
			nomad:   nomadSays(alive, Alloc{State: Foreign}), want: refuse,
		},
		"released by who is unknown": {
			records: records{object(in(endpoint.Released), givenUp)},
			nomad:   nomadSays(alive, Alloc{State: Foreign}), want: refuse,
		},
		"another configuration of who is unknown": {
			records: records{object(otherHash, expired)},
			nomad:   nomadSays(alive, Alloc{State: Foreign}), want: refuse,
		},
		"ended, of who is unknown": {
			records: records{object(exited, long)},
			nomad:   nomadSays(alive, Alloc{State: Foreign}), want: refuse,
		},
		"owner never started it, and is lost": {
			records: records{object(in(endpoint.Starting))},
			nomad:   nomadSays(alive, lost), want: adopt,
		},
		"owner unknown, lease valid": {
			records: records{object()},
			nomad:   nomadSays(alive, Alloc{}), want: wait, wait: 20 * time.Second,
		},
		"no API, lease valid": {
			records: records{object()},
			want:    wait, wait: 20 * time.Second,
		},
		"no API, lease run out": {records: records{object(expired)}, want: adopt},
		"no API, lease run out, on_lost = restart": {
			records: records{object(expired)},
			edit:    restart, want: end,
		},
		"no API, starting under a valid lease": {
			records: records{object(in(endpoint.Starting))},
			want:    wait, wait: 20 * time.Second,
		},
		"owner alive": {
			records: records{object()},
			nomad:   nomadSays(alive, alive), want: wait,
		},
		"owner alive, lease run out": {
			records: records{object(expired)},
			nomad:   nomadSays(alive, alive), want: wait,
		},
		"owner about to stop": {
			records: records{object()},
			nomad:   nomadSays(alive, leaving), want: wait,
		},

		"canary of the same configuration": {
			records: records{object()},
			nomad:   nomadSays(canary, alive), want: create, object: suffixed,
		},
		"canary of another configuration": {
			records: records{object(otherHash)},
			nomad:   nomadSays(canary, alive), want: create, object: plain,
		},
		"beside an alive canary": {
			records: records{object()},
			nomad:   nomadSays(alive, canary), want: create, object: suffixed,
		},
		"a canary leaves a lost old one": {
			records: records{object(otherHash)},
			nomad:   nomadSays(canary, lost), want: create, object: plain,
		},
		"an old one leaves a lost canary": {
			records: records{object(otherHash)},
			nomad:   nomadSays(alive, Alloc{State: Ended, Lost: true, Canary: true}), want: create, object: plain,
		},
		"a canary while its owner is stopped": {
			records: records{object()},
			nomad:   nomadSays(canary, leaving), want: wait,
		},
		"a canary, and no answer": {
			records: records{object(otherHash)},
			nomad:   nomadSays(canary, Alloc{}), want: wait, wait: 20 * time.Second,
		},

		"update: the old one's owner has ended": {
			records: records{object(otherHash)},
			nomad:   nomadSays(alive, complete), want: end,
		},
		"update: the old one was released": {
			records: records{object(otherHash, in(endpoint.Released), givenUp)},
			nomad:   nomadSays(alive, complete), want: end,
		},
		"update: the old one has exited": {
			records: records{object(otherHash, exited)},
			nomad:   nomadSays(alive, lost), want: remove,
		},
		"update: its owner is alive": {
			records: records{object(otherHash)},
			nomad:   nomadSays(alive, leaving), want: wait,
		},
		"update: no API, lease run out": {records: records{object(otherHash, expired)}, want: end},
		"the old one is ended before one is adopted": {
			records: records{object(in(endpoint.Released), givenUp), object(otherHash, expired)},
			nomad:   nomadSays(alive, lost), want: end, object: keyOf.Name(hashA),
		},

		"batch: ended unattended, owner lost": {
			records: records{object(exited)},
			nomad:   nomadSays(alive, lost), want: adopt,
		},
		"batch: ended after its release": {
			records: records{object(exited, givenUp)},
			nomad:   nomadSays(alive, complete), want: adopt,
		},
		"batch: ended, with on_lost = restart": {
			records: records{object(exited)},
			nomad:   nomadSays(alive, lost), edit: restart, want: adopt,
		},
		"ended, and Nomad knows": {
			records: records{object(exited)},
			nomad:   nomadSays(alive, complete), want: remove,
		},
		"ended and told": {
			records: records{object(exited, told)},
			nomad:   nomadSays(alive, Alloc{State: NotFound}), want: remove,
		},
		"ended, this process told it": {
			records: records{object(exited, long)},
			edit:    toldOf("alloc-a/echo/1"), want: remove,
		},
		"ended, of the job": {
			records: records{object(exited, long, ofJob(7))},
			nomad:   nomadSays(indexed(7), Alloc{State: NotFound}), want: adopt,
		},
		"ended, of a job that was purged": {
			records: records{object(exited, long, ofJob(5))},
			nomad:   nomadSays(indexed(7), Alloc{State: NotFound}), want: remove,
		},
		"released, of a job that was purged": {
			records: records{object(in(endpoint.Released), givenUp, long, ofJob(5))},
			nomad:   nomadSays(indexed(7), Alloc{State: NotFound}), want: end,
		},
		"of a job that was purged, about to stop": {
			records: records{object(ofJob(5))},
			nomad:   nomadSays(indexed(7), leaving), want: wait,
		},
		"ended, of a job that may have been purged": {
			records: records{object(exited, long, ofJob(5))},
			want:    adopt,
		},
		"ended just now, and no API": {records: records{object(exited)}, want: wait, wait: testLease},
		"ended long ago, and no API": {records: records{object(exited, long)}, want: adopt},
		"ended, its owner is alive": {
			records: records{object(exited)},
			nomad:   nomadSays(alive, alive), want: wait,
		},

		"killed during a start: runs": {
			records: records{object(by("alloc-b", "node-b"))},
			nomad:   nomadSays(alive, Alloc{}), want: adopt,
		},
		"killed during a start: no API": {
			records: records{object(by("alloc-b", "node-b"))},
			want:    adopt,
		},
		"killed during a start: not run": {
			records: records{object(by("alloc-b", "node-b"), in(endpoint.Starting))},
			want:    adopt,
		},
		"killed during a start: ended": {
			records: records{object(by("alloc-b", "node-b"), exited)},
			want:    adopt,
		},
		"restarted after its end": {
			records: records{object(by("alloc-b", "node-b"), exited, told)},
			want:    remove,
		},
		"restarted, this process told it": {
			records: records{object(by("alloc-b", "node-b"), exited)},
			edit:    toldOf("alloc-b/echo/1"), want: remove,
		},
		"restarted after a stop that did not reach it": {
			records: records{object(by("alloc-b", "node-b"))},
			edit:    func(s *situation) { s.Ends = []string{plain} }, want: end,
		},
		"restarted with another configuration": {
			records: records{object(by("alloc-b", "node-b"), otherHash)},
			want:    end,
		},
		"restarted, the other configuration has ended": {
			records: records{object(by("alloc-b", "node-b"), otherHash, exited)},
			want:    remove,
		},
		"released by this allocation before": {
			records: records{object(by("alloc-b", "node-b"), in(endpoint.Released), givenUp)},
			want:    adopt,
		},
		"its own canary beside the old one": {
			records: records{object(), object(by("alloc-b", "node-b"), func(r *endpoint.Record) { r.Name = suffixed })},
			nomad:   nomadSays(canary, alive), want: adopt, object: suffixed,
		},
		"killed while it ended the old one": {
			records: records{object(otherHash, by("alloc-b", "node-b"), endingOf("alloc-b/echo/1"))},
			want:    end,
		},

		"somebody ends it": {
			records: records{object(beingEnded)},
			nomad:   nomadSays(alive, Alloc{}), want: wait, wait: 20 * time.Second,
		},
		"who was to end it is gone": {records: records{object(beingEnded, expired)}, want: end},
		"ended, not removed":        {records: records{object(beingEnded, exited, long)}, want: remove},

		"system job, another node's": {
			records: records{object(onNode("node-a"))},
			nomad:   nomadSays(alive, alive), edit: system, want: create, object: nodeKey("node-b").Name(hashB),
		},
		"system job, this node's": {
			records: records{object(onNode("node-b"), by("alloc-a", "node-b"))},
			nomad:   nomadSays(alive, lost), edit: system, want: adopt,
		},
		"system job, started without API": {
			records: records{object(by("alloc-a", "node-b"))},
			nomad:   nomadSays(alive, lost), edit: system, want: adopt,
		},
		"system job, another's without API": {
			records: records{object()},
			nomad:   nomadSays(alive, alive), edit: system, want: create, object: nodeKey("node-b").Name(hashB),
		},
		"system job without API: no theft": {records: records{object()}, want: wait, wait: 20 * time.Second},
		"no API now, its own system job": {
			records: records{object(onNode("node-b"), by("alloc-b", "node-b"))},
			want:    adopt,
		},

		"full": {records: records{object(unlike)}, edit: places(1), want: refuse},
		"full of what has ended": {
			records: records{object(unlike, exited)},
			edit:    places(1), want: create, object: plain,
		},
		"full, but it has its own": {
			records: records{object(in(endpoint.Released), givenUp)},
			edit:    places(1), want: adopt,
		},
		"damaged": {records: records{{Name: plain, State: endpoint.Damaged}}, want: refuse},
		"busy":    {records: records{{Name: plain, State: endpoint.Damaged, Busy: true}}, want: refuse},
		"its other version is damaged": {
			records: records{{Name: keyOf.Name(hashA), State: endpoint.Damaged}}, want: refuse,
		},
		"another is damaged": {
			records: records{{Name: "nomad-x", State: endpoint.Damaged}},
			want:    create, object: plain,
		},

		"this allocation is lost": {
			records: records{object()},
			nomad:   nomadSays(lost, Alloc{}), want: refuse,
		},
		"this allocation is purged":  {nomad: nomadSays(Alloc{State: NotFound}, Alloc{}), want: refuse},
		"this allocation is to stop": {nomad: nomadSays(leaving, Alloc{}), want: refuse},
		"this allocation is disconnected": {
			records: records{object()},
			nomad:   nomadSays(Alloc{State: Disconnected, Wanted: true}, alive), want: wait,
		},
		"both are kept after a reconnect": {
			records: records{object()},
			nomad:   nomadSays(alive, alive), want: wait,
		},
	} {
		s := &situation{
			Key: keyOf, Hash: hashB, Owner: endpoint.Owner{Alloc: "alloc-b", Node: "node-b", TaskID: "alloc-b/echo/2"},
			Records: c.records, Allocs: c.nomad, Lease: testLease, Told: func(string) bool { return false },
		}
		if c.edit != nil {
			c.edit(s)
		}
		got := plan(s)
		test.Eq(t, c.want, got.Do, test.Sprintf("%s: %s", name, got.Reason))
		test.NotEq(t, "", got.Reason, test.Sprint(name))
		object := got.Name
		if got.Record != nil {
			object = got.Record.Name
			if c.object == "" {
				object = ""
			}
		}
		test.Eq(t, c.object, object, test.Sprint(name))
		test.Eq(t, c.wait, got.Wait, test.Sprint(name))
	}
}

func restart(s *situation) { s.Restart = true }

func places(n int) func(*situation) { return func(s *situation) { s.Max = n } }

func toldOf(id string) func(*situation) {
	return func(s *situation) { s.Told = func(of string) bool { return of == id } }
}

func system(s *situation) { s.Key = nodeKey("node-b") }

func nodeKey(node string) endpoint.Key {
	k := keyOf
	k.Node = node
	return k
}

func onNode(node string) func(*endpoint.Record) {
	return func(r *endpoint.Record) { r.Key, r.Name = nodeKey(node), nodeKey(node).Name(hashB) }
}

func endingOf(id string) func(*endpoint.Record) {
	return func(r *endpoint.Record) { r.Owner.TaskID = ending + id }
}
