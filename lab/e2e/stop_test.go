// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// group is a shell whose main process starts two children, of which one, the daemon, has left its parent behind. Each
// says which signals it gets; the daemon, and with deaf all of them, do not end by any.
func group(deaf string) conf {
	return sh(`
loop() { while :; do sleep 0.05; done; }
( trap 'echo child got INT; ` + deaf + `' INT; trap 'echo child got TERM; ` + deaf + `' TERM
  echo child $(exec sh -c 'echo $PPID'); loop ) &
sh -c '
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
