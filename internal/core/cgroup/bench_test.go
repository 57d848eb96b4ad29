// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// BenchmarkCreate measures Create, which every StartTask waits for before it starts a process.
func BenchmarkCreate(b *testing.B) {
	g := v1Task(b)
	keepParents(b, g)
	zero := uint64(0)
	l := Limits{MemoryMax: 64 << 20, CPUShares: 100, PidsMax: 100, Swappiness: &zero}
	for b.Loop() {
		must.NoError(b, g.Create(l))
		b.StopTimer()
		must.NoError(b, g.Remove())
		b.StartTimer()
	}
}

// keepParents makes the groups of a second task. They share their parents with the groups of g, so Remove never has to
// remove the parents.
func keepParents(b *testing.B, g Group) {
	other := Group{Mode: V1, V1: map[string]string{}}
	for _, dir := range g.Owned {
		other.Owned = append(other.Owned, dir+"2")
	}
	must.NoError(b, other.Create(Limits{}))
	b.Cleanup(func() {
		test.NoError(b, other.Remove())
	})
}

func BenchmarkRemove(b *testing.B) {
	g := v1Task(b)
	keepParents(b, g)
	for b.Loop() {
		b.StopTimer()
		must.NoError(b, g.Create(Limits{}))
		b.StartTimer()
		must.NoError(b, g.Remove())
	}
}

// BenchmarkEmpty measures Empty, which is called at the exit of every task.
func BenchmarkEmpty(b *testing.B) {
	g := v1Task(b)
	must.NoError(b, g.Create(Limits{}))
	for b.Loop() {
		empty, err := g.Empty()
		must.NoError(b, err, must.Sprint(empty, err))
		must.True(b, empty, must.Sprint(empty, err))
	}
}

// BenchmarkStats measures one sample of a task's statistics.
func BenchmarkStats(b *testing.B) {
	g := v1Task(b)
	must.NoError(b, g.Create(Limits{}))
	for b.Loop() {
		_, err := g.Stats()
		must.NoError(b, err)
	}
}
