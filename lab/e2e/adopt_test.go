// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Nobody but the supervisor sees the tasks end, and then only its disk is left.
func TestExit_IsKeptOnFullStateDisk(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	n := newNode(t, nodeOptions{prepare: smallDisks})
	trigger := filepath.Join(n.dir, "go")
	want := []string{"exit 7", "exit 0", "signal 15"}
	var tasks []*alloc
	var dirs []string
	var procs []proc
	for _, then := range []string{"exit:7", "exit:0", "signal:15"} {
		a := n.start(t, conf{"command": counter, "args": []string{"-until", trigger, "-then", then}})
		a.says(t, "stdout", "line 20")
		dir, _ := n.stateOf(t, a.id)
		tasks, dirs, procs = append(tasks, a), append(dirs, dir), append(procs, a.pid(t))
	}
	free := fill(t, n.state)
	resume := n.process(t).pause(t)
	n.plugin(t).end(t)
	touch(t, trigger)
	for i, p := range procs {
		testsupport.Within(t, time.Minute, func() error {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", p.pid)); err == nil {
				return errors.New("it is not reaped")
			}
			return exitRecorded(dirs[i])
		})
	}
	n.supervisor(t).end(t)
	resume()
	for i, a := range tasks {
		if got := a.ended(t); got != want[i] {
			t.Errorf("Nomad tells %q, want %q: %s", got, want[i], a.story())
		}
	}
	free()
}
