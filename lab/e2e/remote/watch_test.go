// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// proc is a process of a task, as this machine has it.
type proc struct {
	pid     int
	start   uint64
	version string
}

// key tells tasks apart: a cell and its index.
type key struct{ cell, index int }

// watcher looks for the processes of all cells all the time. Two of one key at the same time are an error, except two
// versions of a cell that has canaries.
type watcher struct {
	mu       sync.Mutex
	found    map[key][]proc
	canaries map[int]bool
	stop     chan struct{}
}

func watch(t *testing.T) *watcher {
	t.Helper()
	w := &watcher{canaries: map[int]bool{}, stop: make(chan struct{})}
	var ended sync.WaitGroup
	ended.Go(func() {
		told := map[key]bool{}
		for {
			for k, list := range w.see() {
				if n := w.copies(k, list); n > 1 && !told[k] {
					told[k] = true
					test.Eq(t, 1, n, test.Sprintf("cell %d [%d] runs twice: %v", k.cell, k.index, list))
				}
			}
			select {
			case <-w.stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() {
		close(w.stop)
		ended.Wait()
	})
	return w
}

// see looks once.
func (w *watcher) see() map[key][]proc {
	found := map[key][]proc{}
	prefix := fmt.Sprintf("8%05d", os.Getpid()%100000)
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range dirs {
		b, _ := os.ReadFile(path)
		args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if len(args) != 2 || args[0] != "sleep" || !strings.HasPrefix(args[1], prefix) {
			continue
		}
		cell, rest, _ := strings.Cut(strings.TrimPrefix(args[1], prefix), ".")
		if len(rest) != 2 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		st, err := task.ReadStat(pid)
		if err != nil || st.Zombie {
			continue
		}
		n, _ := strconv.Atoi(cell)
		k := key{n, int(rest[1] - '0')}
		found[k] = append(found[k], proc{pid, st.Identity().Start, rest[:1]})
	}
	w.mu.Lock()
	w.found = found
	w.mu.Unlock()
	return found
}

// copies is how many processes of a key there are, at most of one version where there may be two.
func (w *watcher) copies(k key, list []proc) (most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.canaries[k.cell] {
		return len(list)
	}
	by := map[string]int{}
	for _, p := range list {
		by[p.version]++
		most = max(most, by[p.version])
	}
	return most
}

// allow lets a cell have two versions at the same time.
func (w *watcher) allow(cell int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.canaries[cell] = true
}

// of are the processes of a key now.
func (w *watcher) of(cell, index int) []proc { return w.see()[key{cell, index}] }
