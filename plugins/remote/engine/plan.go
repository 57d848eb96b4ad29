// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// situation is everything that a start is decided by.
type situation struct {
	Key     endpoint.Key // Node is set where the API told that the job is a system job
	Hash    string
	Files   string               // the digest that is part of it
	Owner   endpoint.Owner       // who starts
	Records []*endpoint.Record   // of all objects at the endpoint
	Allocs  map[string]Alloc     // by id: Owner's, and those of the owners of objects of the key
	Lease   time.Duration        // ttl
	Restart bool                 // on_lost = "restart"
	Max     int                  // max_tasks of the endpoint, 0 for none
	Told    func(id string) bool // this process saw the exit of this start told
	Ends    []string             // objects that a stop of this process could not reach yet
	Unseen  bool                 // this allocation had an object, and its end was not seen
	Waited  *endpoint.Record     // what this start waited for last, nil for nothing
}

// step is the next thing that a start does. After those that are not final the situation is
// looked at again.
type step struct {
	Do     action
	Record *endpoint.Record // of the object, except with create and refuse, and some waits
	Name   string           // of the object that is created
	Wait   time.Duration    // after which it may have changed, 0 if that is unknown
	Reason string           // for events and records
}

type action string

// The actions of a start.
const (
	create action = "create"
	adopt  action = "adopt"  // final: Take. What is Starting is started, what has Exited is told
	end    action = "end"    // Take, Stop, Remove
	remove action = "remove" // an object that has ended, and was told
	wait   action = "wait"
	refuse action = "refuse" // final
)

// ending begins the TaskID of an owner who has taken an object over to end it: nobody may
// adopt it any more.
const ending = "ending/"

// plan decides what a start does next. It changes nothing and asks nobody.
func plan(s *situation) step {
	if st, ok := s.wanted(); !ok {
		return st
	}
	mine, others := s.ofTask()
	if len(mine) > 0 {
		return s.own(mine[0])
	}
	st, ok := s.others(others)
	if s.Unseen && s.Allocs[s.Owner.Alloc].State == NoAnswer && (!ok || st.Do == remove || st.Do == end) {
		// A node that is cut off from Nomad's servers may be the only one that does not know.
		return step{Do: refuse, Reason: "this allocation ran the task before and did not see it end, so another one may " +
			"have taken it over and run it to its end, and Nomad's API does not tell whether it is to run again"}
	}
	if ok {
		return st
	}
	if st, ok = s.finished(); ok {
		return st
	}
	if live := s.live(); s.Max > 0 && live >= s.Max {
		return step{Do: refuse, Reason: fmt.Sprintf("the endpoint has %d of at most %d tasks (max_tasks)", live, s.Max)}
	}
	if why := s.mayRun(); why != "" {
		return step{Do: refuse, Reason: why}
	}
	name := s.Key.Name(s.Hash)
	if slices.ContainsFunc(s.Records, func(r *endpoint.Record) bool { return r.Name == name }) {
		name += "-" + strings.ReplaceAll(fmt.Sprintf("%.8s", s.Owner.Alloc), "/", "-") // beside another owner's
	}
	return step{Do: create, Name: name, Reason: "started by Nomad"}
}

// wanted is false, with what to do, if Nomad does not want this allocation to run, or not yet.
func (s *situation) wanted() (st step, ok bool) {
	switch me := s.Allocs[s.Owner.Alloc]; {
	case me.State == Ended, me.State == NotFound, me.State == Foreign, me.State == Alive && !me.Wanted:
		return step{Do: refuse, Reason: "Nomad does not want this allocation to run any more"}, false
	case me.State == Disconnected:
		return step{Do: wait, Reason: "Nomad's servers have not heard from this node yet"}, false
	}
	return step{}, true
}

// ofTask returns the objects of the task, the newest first: this allocation's, and those of others.
func (s *situation) ofTask() (mine, others []*endpoint.Record) {
	for _, r := range s.Records {
		switch {
		case !s.ofKey(r):
		case r.Owner.Alloc == s.Owner.Alloc:
			mine = append(mine, r)
		default:
			others = append(others, r)
		}
	}
	newestFirst := func(a, b *endpoint.Record) int {
		return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Name, b.Name))
	}
	slices.SortFunc(mine, newestFirst)
	slices.SortFunc(others, newestFirst)
	return mine, others
}

// live counts the objects that have not ended.
func (s *situation) live() (n int) {
	for _, r := range s.Records {
		if r.State != endpoint.Exited {
			n++
		}
	}
	return n
}

// finished decides on a batch task whose object this start waited for and that is gone: another allocation may have
// run it to its end. Nomad learns of that a moment later, and may then not want this allocation any more.
func (s *situation) finished() (st step, ok bool) {
	if s.Waited == nil || s.Waited.Job == endpoint.Service || s.Waited.Job == endpoint.System ||
		isEnding(s.Waited) || s.Waited.Owner.Alloc == "" { // ended on purpose
		return step{}, false
	}
	owner := "allocation " + short(s.Waited.Owner.Alloc)
	switch o := s.Allocs[s.Waited.Owner.Alloc]; {
	case o.State == Ended && !o.Lost:
		return step{}, false // and this one is still wanted
	case o.State == NoAnswer:
		return step{Do: refuse, Reason: owner + " had the task until now and may have run it to its end, and Nomad's API " +
			"does not tell whether it is to run again"}, true
	}
	return step{Do: wait, Reason: owner + " had the task until now, and Nomad does not tell yet how it ended"}, true
}

// mayRun returns why the task may run in an object that is not of the key, empty if there is none.
func (s *situation) mayRun() string {
	for _, r := range s.Records { // of a damaged one only the name is known
		if r.State != endpoint.Damaged || !strings.HasPrefix(r.Name, s.Key.Name("")) {
			continue
		}
		if r.Busy {
			return "object " + r.Name + " there could not be looked at: it may still run (" + brief(r.Reason) + ")"
		}
		return "the record of object " + r.Name + " there is damaged: it may still run. " +
			"Look with nomad-driver-remote list, and end it with nomad-driver-remote stop"
	}
	for _, r := range s.Records {
		if st := s.Allocs[r.Owner.Alloc].State; s.renamed(r) && st != NoAnswer && st != Foreign {
			return fmt.Sprintf("object %s there runs this task, from when the option cluster was %q: "+
				"end it with nomad-driver-remote stop, or set the option as it was", r.Name, r.Key.Cluster)
		}
	}
	return ""
}

// ofKey reports whether an object is of the task. Without an API a system job's have no node
// in their key.
func (s *situation) ofKey(r *endpoint.Record) bool {
	k := r.Key
	k.Node = s.Key.Node
	switch {
	case k != s.Key:
		return false
	case r.Key.Node == s.Key.Node:
		return true
	case s.Key.Node == "":
		return r.Key.Node == s.Owner.Node
	}
	return r.Key.Node == "" && r.Owner.Node == s.Owner.Node
}

// renamed reports whether an object that has not ended is of the task if the cluster had another name: the
// option was changed, or it is another cluster's.
func (s *situation) renamed(r *endpoint.Record) bool {
	same := *r
	same.Key.Cluster = s.Key.Cluster
	return r.Key.Cluster != s.Key.Cluster && s.ofKey(&same) && r.State != endpoint.Exited
}

// same reports whether an object runs what is to be started. If its files were copied again since it was
// made, it is these that count: a template was rendered again.
func (s *situation) same(r *endpoint.Record) bool {
	if r.Files == "" {
		return r.Hash == s.Hash
	}
	return r.Files == s.Files && programOf(r.Hash) == programOf(s.Hash)
}

// own decides on an object that this allocation owns by an earlier start. The agent may have
// been killed before it knew of that, or has been told how it ended.
func (s *situation) own(r *endpoint.Record) step {
	st := step{Record: r}
	told := r.Told || s.Told(r.Owner.TaskID)
	switch {
	case r.State == endpoint.Exited && (told || !s.same(r) || isEnding(r)):
		st.Do, st.Reason = remove, "this allocation's earlier run has ended"
	case isEnding(r):
		st.Do, st.Reason = end, "this allocation began to end it"
	case slices.Contains(s.Ends, r.Name):
		st.Do, st.Reason = end, "it was to be stopped, and could not be reached"
	case !s.same(r):
		st.Do, st.Reason = end, "the task has another configuration now"
	case r.State == endpoint.Exited:
		st.Do, st.Reason = adopt, "it ended, and Nomad was not told how"
	default:
		st.Do, st.Reason = adopt, "this allocation started it before"
	}
	return st
}

// others decides on the objects of other allocations of the same name.
func (s *situation) others(records []*endpoint.Record) (st step, ok bool) {
	me := s.Allocs[s.Owner.Alloc]
	var takeover, first step
	for _, r := range records {
		o := s.Allocs[r.Owner.Alloc]
		held, until, why := s.held(r, o)
		switch {
		case o.State == Foreign:
			return step{Do: refuse, Reason: fmt.Sprintf("object %s there may be another cluster's: this one does not know "+
				"allocation %s, nor node %s (which needs node:read); set the option cluster where several clusters use the "+
				"endpoint, or hand the object over with nomad-driver-remote adopt",
				r.Name, short(r.Owner.Alloc), short(r.Owner.Node))}, true
		case held && (me.Canary || o.Canary) && o.Wanted:
			continue // it runs beside this one
		case held:
			return step{Do: wait, Record: r, Wait: until, Reason: why}, true
		case isEnding(r) && r.State == endpoint.Exited:
			return step{Do: remove, Record: r, Reason: why}, true
		case isEnding(r):
			return step{Do: end, Record: r, Reason: why}, true
		case r.JobIndex != 0 && me.Index != 0 && r.JobIndex != me.Index:
			st := step{Do: end, Record: r, Reason: "it is of an earlier job of this name, which was purged"}
			if r.State == endpoint.Exited {
				st.Do = remove
			}
			return st, true
		case r.State == endpoint.Exited && (r.Told || s.Told(r.Owner.TaskID) || o.Told && !r.GivenUp):
			if s.same(r) || !me.Canary {
				return step{Do: remove, Record: r, Reason: "it ended, and Nomad knows how"}, true
			}
		case !s.same(r):
			// A canary leaves the tasks of the old version to their own replacements, and they the canary's to its.
			if me.Canary || o.Canary {
				continue
			}
			if first.Do == "" {
				first = step{Do: end, Record: r, Reason: "the job has another configuration now, and " + why}
				if r.State == endpoint.Exited {
					first.Do = remove
				}
			}
		case takeover.Do != "":
		case r.State == endpoint.Exited:
			takeover = step{Do: adopt, Record: r, Reason: "it ended while " + why + ", and Nomad was not told how"}
		case slices.Contains(s.Ends, r.Name), o.Stopped && !r.GivenUp:
			takeover = step{Do: end, Record: r, Reason: "it was to be stopped, and could not be reached; " + why}
		case s.Restart && !r.GivenUp:
			takeover = step{Do: end, Record: r, Reason: "on_lost is \"restart\", and " + why}
		default:
			takeover = step{Do: adopt, Record: r, Reason: why}
		}
	}
	if first.Do != "" {
		return first, true
	}
	return takeover, takeover.Do != ""
}

// held reports whether an object is another allocation's still, for how long at most (0 is
// unknown), and why or why not.
func (s *situation) held(r *endpoint.Record, o Alloc) (held bool, until time.Duration, why string) {
	owner := "allocation " + short(r.Owner.Alloc)
	if r.Owner.Alloc == "" {
		owner = OwnerOf(r)
	}
	left := r.Lease // of the owner
	if r.State == endpoint.Exited {
		left = s.Lease - r.Age // the owner, if it lives, tells of the exit soon
	}
	switch {
	case isEnding(r) && left > 0:
		return true, left, "it is being ended"
	case isEnding(r):
		return false, 0, "whoever was to end it has not"
	case r.GivenUp || r.State == endpoint.Released:
		return false, 0, owner + " has released it"
	}
	switch o.State {
	case Ended:
		if o.Lost {
			return false, 0, owner + " is lost"
		}
		return false, 0, owner + " has ended"
	case Disconnected:
		return false, 0, "Nomad's servers have lost the node of " + owner
	case NotFound:
		return false, 0, "Nomad does not know " + owner + " any more"
	case Alive:
		if o.Wanted {
			return true, 0, owner + " runs it"
		}
		return true, 0, owner + " is about to stop it"
	}
	if left > 0 {
		return true, left, "Nomad's API does not tell of " + owner + ", and its lease lasts"
	}
	return false, 0, "the lease of " + owner + " has run out, and Nomad's API does not tell of it"
}

func isEnding(r *endpoint.Record) bool { return strings.HasPrefix(r.Owner.TaskID, ending) }

// short is an id as Nomad's tools print it.
func short(id string) string { return fmt.Sprintf("%.8s", id) }
