// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// family is a shell whose main process starts a child in its process group and a
// daemon that has left group, session and parent behind. Each says which signals
// it gets; the daemon, and with deaf all of them, do not end by any.
func family(deaf string) conf { return familyOf("setsid sh", deaf) }

// group is a family whose daemon has not left the process group, which is all that a task without a cgroup is.
func group(deaf string) conf { return familyOf("sh", deaf) }

func familyOf(shell, deaf string) conf {
	return sh(`
loop() { while :; do sleep 0.05; done; }
( trap 'echo child got INT; ` + deaf + `' INT; trap 'echo child got TERM; ` + deaf + `' TERM
  echo child $(exec sh -c 'echo $PPID'); loop ) &
` + shell + ` -c '
  ( trap "echo daemon got INT" INT; trap "echo daemon got TERM" TERM
    echo daemon $(exec sh -c "echo \$PPID"); while :; do sleep 0.05; done ) &
' 
trap 'echo main got INT; ` + deaf + `' INT; trap 'echo main got TERM; ` + deaf + `' TERM
echo main $$
loop`)
}

// members waits for the processes of a family and returns them.
func members(t *testing.T, a *alloc) map[string]proc {
	t.Helper()
	found := map[string]proc{}
	testsupport.Within(t, time.Minute, func() error {
		out, err := a.read("stdout")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if len(f) != 2 {
				continue
			}
			if pid, err := strconv.Atoi(f[1]); err == nil {
				if found[f[0]], err = readProc(pid); err != nil {
					return fmt.Errorf("%s: %w", f[0], err)
				}
			}
		}
		if len(found) != 3 {
			return fmt.Errorf("%d processes have reported: %q %q", len(found), out, a.output(t, "stderr"))
		}
		return nil
	})
	return found
}

func TestPurge_MakesNoWarnings(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeOptions{})
	const crowd = 20
	j := job(t, sh("trap '' INT; while :; do sleep 0.1; done"), small(crowd), func(_ *api.Job, task *api.Task) {
		task.KillTimeout = new(100 * time.Millisecond)
	})
	n.submit(t, j)
	testsupport.Within(t, 2*time.Minute, func() error { return n.countRunning(*j.ID, crowd) })
	_, _, err := n.Client().Jobs().Deregister(*j.ID, true, nil)
	must.NoError(t, err)
	testsupport.Within(t, time.Minute, n.tasksLeft)
	last := n.submit(t, job(t, sh("kill -HUP $$"))) // events come one by one, in their order
	last.ended(t)
	test.NoError(t, last.tells("Killed by signal 1"))
	for line := range strings.Lines(n.log()) {
		test.StrNotContains(t, line, "no handler registered")
	}
}

// gone asks that the processes have ended: Nomad has told so already, or is about to.
func gone(t *testing.T, procs map[string]proc) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		for name, p := range procs {
			if p.alive() {
				return fmt.Errorf("%s (%d) lives", name, p.pid)
			}
		}
		return nil
	})
}
