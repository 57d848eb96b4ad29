// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// 1,000 starts, or 250 of a sample.
func TestEngine_StaysFlatThroughAThousandTasks(t *testing.T) {
	if _, sampled := testsupport.Seed(t); sampled {
		staysFlat(t, 50, 250)
	} else {
		staysFlat(t, 50, 1000)
	}
}

func TestEngine_StaysFlatThroughSomeTasks(t *testing.T) { staysFlat(t, 10, 20) }

const (
	heapSlack = 64 << 10 // bytes, of caches and buffers: 1,000 starts that leave 64 bytes each are more
	hostSlack = 4 << 10  // kB of each process, whose heap has garbage
)

// staysFlat runs tasks from their start to their removal. After the first ones it compares what an engine has in memory
// and open, and what the processes on the host have.
func staysFlat(t *testing.T, warmUp, many int) {
	m := newMachine(t, os.Geteuid())
	m.idle = "5s" // a pause between two tasks, on a busy machine, ends nothing
	p := newPlugin(t, m, &nomad{}, "alloc", "echo x; exit 3")
	top := p.dir
	lives := func(kind string, n int) {
		for i := range n {
			p.alloc = fmt.Sprint(kind, i)
			p.dir = top + p.alloc
			must.NoError(t, os.MkdirAll(p.dir+"/alloc/logs", 0o777))
			task, err := p.Start(t.Context(), &driver.Start{Event: func(string, ...any) {}, Task: p.config()})
			must.NoError(t, err)
			select {
			case <-task.Ended():
			case <-time.After(time.Minute):
				t.Fatal("the task does not end")
			}
			must.Eq(t, 3, task.Exit().Code)
			must.Eq(t, "x\n", string(p.output(t, "stdout")))
			task.(driver.Teller).Told(t.Context())
			must.NoError(t, p.Destroy(t.Context(), p.id()))
			must.NoError(t, os.RemoveAll(p.dir))
		}
	}
	lives("early", warmUp)
	processes := m.processes("outrider-")
	must.Len(t, 3, processes) // shim, supervisor, collector
	rssBefore, before := map[int]int{}, footprintOf(t, processes)
	for _, pid := range processes {
		rssBefore[pid] = rss(t, pid)
	}
	lives("late", many)
	must.Eq(t, processes, m.processes("outrider-"))
	for _, pid := range processes {
		now := rss(t, pid)
		t.Logf("process %d: %d kB, then %d kB", pid, rssBefore[pid], now)
		test.Less(t, rssBefore[pid]+hostSlack, now, test.Sprintf("kB of process %d after %d tasks", pid, many))
	}
	var after footprint
	defer func() { t.Logf("%d starts: %+v, then %+v", many, before, after) }()
	testsupport.Eventually(t, "no more is in memory and open than before", func() bool {
		after = footprintOf(t, processes)
		return after.heap <= before.heap+heapSlack && after.goroutines <= before.goroutines &&
			after.descriptors <= before.descriptors && after.onHost <= before.onHost
	})
}

// footprint is what an engine has in memory and open, and what is open on the host.
type footprint struct{ heap, goroutines, descriptors, onHost int }

func footprintOf(t *testing.T, onHost []int) (f footprint) {
	t.Helper()
	var s runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools keep through one
	runtime.ReadMemStats(&s)
	f.heap, f.goroutines, f.descriptors = int(s.HeapAlloc), runtime.NumGoroutine(), testsupport.Descriptors(t)
	for _, pid := range onHost {
		fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)) // none of one that has ended: the host is idle
		f.onHost += len(fds)
	}
	return f
}

func rss(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			n, err := strconv.Atoi(f[1])
			must.NoError(t, err)
			return n
		}
	}
	t.Fatalf("process %d has no memory", pid)
	return 0
}
