// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package histories

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/memory"
)

var first = flag.Uint64("seed", 0, "the first of the four seeds")

// 2,000 operations, half of them on an endpoint where a release raises the epoch.
func TestHistories_OwnershipIsLinearizable(t *testing.T) {
	for seed := *first; seed < *first+4; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { Run(t, inMemory(seed, 500)) })
		})
	}
}

func inMemory(seed uint64, operations int) Options {
	const lease = 30 * time.Second
	store := memory.New(lease)
	store.ReleaseRaises = seed%2 == 1
	var clients []*memory.Client
	for range nodes {
		clients = append(clients, store.Connect())
	}
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	unreliable := func(string) (f memory.Fault) {
		mu.Lock()
		defer mu.Unlock()
		f.Delay = time.Duration(random.IntN(300)) * time.Millisecond
		f.Request, f.Answer = random.IntN(10) == 0, random.IntN(5) == 0
		return f
	}
	return Options{
		Seed: seed, Operations: operations, Lease: lease,
		Endpoint: func(node int) endpoint.Endpoint { return clients[node] },
		Spec: func(job string) *endpoint.Spec {
			return &endpoint.Spec{Task: "task", Env: map[string]string{"JOB": job}, Process: &endpoint.Process{Command: "x"}}
		},
		Cut:  func(node int, off bool) { clients[node].Cut(off) },
		Exit: func(object string, code int) { store.Exit(object, task.Exit{Code: code}) },
		Step: store.Step,
		Fault: func(node int, on bool) {
			if on {
				clients[node].Break(unreliable)
			} else {
				clients[node].Break(nil)
			}
		},
		Runs: func(job string) (list []Ran) {
			for _, r := range store.Runs() {
				if r.Key.Job == job {
					list = append(list, Ran{From: r.From, To: r.To, Exit: r.Exit})
				}
			}
			return list
		},
	}
}
