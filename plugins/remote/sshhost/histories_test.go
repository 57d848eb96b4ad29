// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine/histories"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
)

// Three nodes on a real host, whose links go down in the middle of calls: 2,000 operations, or one history of a sample.
func TestHost_IsOwnedByOneAtATime(t *testing.T) {
	testsupport.NeedRoot(t)
	for _, seed := range histories.Seeds(t, 8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel() // it mostly waits for the ends of leases
			history(t, seed, 250)
		})
	}
}

func history(t *testing.T, seed uint64, operations int) {
	m := newMachine(t, 0)
	dir := t.TempDir()
	const lease = time.Second
	var hosts []*sshhost.Host
	var down [3]atomic.Bool
	for i := range down {
		var h *sshhost.Host
		h = sshhost.New(sshhost.Config{Lease: lease, Dial: func(context.Context) (net.Conn, error) {
			if down[i].Load() {
				return nil, errDown
			}
			return m.dial(h)
		}})
		t.Cleanup(func() { _ = h.Close() })
		hosts = append(hosts, h)
	}
	person := m.host()
	program := histories.Program(`flock -n "$DIR/$JOB.lock" sleep 1000`)
	histories.Run(t, histories.Options{
		Seed: seed, Operations: operations, Lease: lease, Late: true,
		Endpoint: func(node int) endpoint.Endpoint { return hosts[node] },
		Spec: func(job string) *endpoint.Spec {
			s := shell(program)
			s.Task, s.Env["DIR"], s.Env["JOB"] = "task", dir, job
			return s
		},
		Cut: func(node int, off bool) {
			down[node].Store(off)
			m.mu.Lock()
			linked := len(m.shims[hosts[node]]) > 0
			m.mu.Unlock()
			if off && linked {
				m.cut(t, hosts[node])
			}
		},
		Exit: func(object string, code int) {
			if r, err := person.Get(t.Context(), object); err == nil {
				_ = person.Signal(t.Context(), r.Ref(), []string{"SIGUSR1", "SIGUSR2"}[code]) // unless it has ended by now
			}
		},
		Runs: func(job string) []histories.Ran { return histories.ReadRuns(t, dir, job) },
	})
}
