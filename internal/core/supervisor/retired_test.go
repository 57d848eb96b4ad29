// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"os"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// If an agent is killed after DestroyTask, but before it has saved that the task ended, the next agent recovers the
// task again, with a new plugin process.
func TestAdopt_ReportsHowADestroyedTaskEnded(t *testing.T) {
	for _, supervisorKilled := range []bool{false, true} {
		t.Run(fmt.Sprintf("supervisor killed: %v", supervisorKilled), func(t *testing.T) {
			h := newHost(t, false)
			first := h.client()
			st := h.launch(first, h.shell("exit 7"))
			h.ends(first, st.ID, task.Exit{Code: 7})
			h.destroy(first, st.ID)
			_, err := os.Stat(h.store.TaskDir(st.ID))
			must.ErrorIs(t, err, os.ErrNotExist)
			if supervisorKilled {
				h.kill(h.supervisor(), unix.SIGKILL)
			}

			for range 2 { // the next agent may be killed at the same point
				next := h.client()
				stat, err := next.Adopt(ctx(t), st)
				must.NoError(t, err)
				test.False(t, stat.Running)
				h.ends(next, st.ID, task.Exit{Code: 7})
				h.destroy(next, st.ID)
			}
		})
	}
}

func TestRetire_BoundsTheRecords(t *testing.T) {
	s := &server{store: task.Store{Dir: t.TempDir()}}
	id := func(i int) string { return fmt.Sprintf("alloc/t/%d", i) }
	retire := func(i int) {
		must.NoError(t, s.store.SaveExit(id(i), &task.Exit{Code: i}))
		record, err := s.store.Retire(id(i))
		must.NoError(t, err)
		s.retire(record)
	}
	for i := range maxRetired + 5 {
		retire(i)
	}
	entries, err := os.ReadDir(s.store.Retired())
	must.NoError(t, err)
	must.SliceLen(t, maxRetired, entries)
	test.Nil(t, s.store.LoadExit(id(4)), test.Sprint("the oldest was kept"))
	newest := s.store.LoadExit(id(maxRetired + 4))
	must.NotNil(t, newest, must.Sprint("the newest was removed"))
	test.Eq(t, maxRetired+4, newest.Code)
}
