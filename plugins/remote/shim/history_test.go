// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/shoenig/test/must"
)

// ownership is the state of the model. The model predicts the results of calls that three sides make one after another.
type ownership struct {
	owner    string // an allocation
	released bool
	epoch    int    // of the last claim
	known    [3]int // the epoch of each side's last claim, 0 for none
}

type call struct {
	side  int
	what  string // claim, resume, take, release, change or kill
	alloc string // the allocation that claims
	from  string // the allocation that the run is taken from
}

// step makes a call in the model. It reports whether the model predicts the result in got, and returns the next state.
func (o ownership) step(c call, got bool) (bool, ownership) {
	mine := o.known[c.side] == o.epoch
	var want bool
	switch c.what {
	case "kill": // the shim or its connection ends
		want = true
		o.known[c.side] = 0
	case "change":
		want = mine
	case "release":
		want = mine
		if want {
			o.released, o.known[c.side] = true, 0
		}
	default:
		want = o.released || c.what == "resume" && o.owner == c.alloc || c.what == "take" && o.owner == c.from
		if want {
			o.epoch++
			o.owner, o.released, o.known[c.side] = c.alloc, false, o.epoch
		}
	}
	return got == want, o
}

// do makes a call, and reports whether it had an effect.
func (s side) do(t *testing.T, c call) bool {
	done := func(err error) bool {
		if !errors.Is(err, errNotOwner) {
			must.NoError(t, err)
		}
		return err == nil
	}
	switch c.what {
	case "kill":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leave()
		return true
	case "change":
		return done(s.become("task", c.alloc, Running))
	case "release":
		return done(s.become("task", c.alloc, Released))
	}
	q := s.request(c.alloc)
	q.TaskID, q.Resume, q.Gone = "task", c.what == "resume", []string{c.from}
	reply, over, err := s.claim(q)
	must.NoError(t, err)
	must.SliceEmpty(t, over)
	return reply.Verdict == Have
}

// The results of 500 concurrent calls must be possible results of the same calls in some sequential order.
func TestRuns_HistoryIsLinearizable(t *testing.T) {
	all := sides(t, 3)
	allocs := []string{"first", "none", "none"} // the allocation of each side's last claim
	first := all[0].request("first")
	first.TaskID = "task"
	_, _, err := all[0].claim(first)
	must.NoError(t, err)
	must.NoError(t, all[0].started("task", nil))

	kinds := []string{"claim", "resume", "take", "take", "release", "release", "change", "change", "change", "kill"}
	var mu sync.Mutex // guards history and allocs
	var history []porcupine.Operation
	begun := time.Now()
	for round := range 500 / len(all) {
		var running sync.WaitGroup
		for i, s := range all {
			running.Go(func() {
				mu.Lock()
				c := call{side: i, what: kinds[rand.N(len(kinds))], alloc: allocs[i]}
				switch c.what {
				case "take":
					c.from = allocs[rand.N(len(all))]
					fallthrough
				case "claim":
					c.alloc = fmt.Sprintf("%s-%d", s.node, round)
				}
				mu.Unlock()
				op := porcupine.Operation{ClientId: i, Input: c, Call: int64(time.Since(begun))}
				got := s.do(t, c)
				op.Output, op.Return = got, int64(time.Since(begun))
				mu.Lock()
				defer mu.Unlock()
				history = append(history, op)
				if got && (c.what == "claim" || c.what == "take") {
					allocs[i] = c.alloc
				}
			})
		}
		running.Wait()
	}
	model := porcupine.Model{
		Init: func() any { return ownership{owner: "first", epoch: 1, known: [3]int{1, 0, 0}} },
		Step: func(state, input, output any) (bool, any) {
			return state.(ownership).step(input.(call), output.(bool))
		},
	}
	must.True(t, porcupine.CheckOperations(model, history), must.Sprint("the history is not linearizable"))
	refused := slices.ContainsFunc(history, func(o porcupine.Operation) bool { return !o.Output.(bool) })
	must.True(t, refused, must.Sprint("no call was refused"))
}
