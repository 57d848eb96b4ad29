// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// A process may be reaped just after a read that found no status. The status must then be read again.
func TestWitness_ReadsTheStatusAgainAfterAReap(t *testing.T) {
	for name, row := range map[string]struct {
		known int // number of the first read that returns the status
		want  task.Exit
	}{
		"known immediately":         {1, task.Exit{Code: 7}},
		"known after the reaping":   {2, task.Exit{Code: 7}},
		"never, on an older kernel": {9, task.Exit{Lost: true}},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			e := witness{
				status: func() (unix.WaitStatus, bool) { reads++; return 7 << 8, reads >= row.known },
				reaped: func() bool { return reads > 0 },
			}.exit(time.Now().Add(time.Minute))
			must.Eq(t, row.want.Code, e.Code, must.Sprintf("exit %+v, want %+v", e, row.want))
			test.Eq(t, row.want.Lost, e.Lost, test.Sprintf("exit %+v, want %+v", e, row.want))
		})
	}
}

// A zombie that its parent does not reap has no status; witness stops at the deadline.
func TestWitness_GivesUpOnAZombieThatIsNotReaped(t *testing.T) {
	asked := 0
	e := witness{
		status: func() (unix.WaitStatus, bool) { asked++; return 0, false },
		reaped: func() bool { return false },
	}.exit(time.Now().Add(20 * time.Millisecond))
	must.True(t, e.Lost, must.Sprintf("exit %+v after %d reads", e, asked))
	must.StrContains(t, e.Reason, "does not reap it", must.Sprintf("exit %+v after %d reads", e, asked))
	test.NotEq(t, 0, asked, test.Sprintf("exit %+v after %d reads", e, asked))
}
