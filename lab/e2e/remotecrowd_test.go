// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// residentMemory is the memory of a process in kB (VmRSS of proc(5)).
func residentMemory(pid int) (kilobytes int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := bytes.Cut(text, []byte("VmRSS:"))
	_, err = fmt.Sscan(string(after), &kilobytes)
	return kilobytes, err
}

// A thousand tasks leave neither descriptors nor memory in the plugin, nor in what it has on the host, nor files there.
func TestRemote_ThousandStartsLeaveNothing(t *testing.T) {
	needRootAgent(t)
	testsupport.Long(t, "a thousand tasks")
	t.Parallel()
	const (
		round  = 250
		rounds = 5 // the first is not counted: then everything is warm

		mostMore = 16 << 10 // kB of memory: the core keeps the exits of the last 1,000 tasks, which take 6 MB here
	)
	n := newRemoteNode(t)
	keep := n.start(t, conf{"command": "/bin/sleep", "args": []string{"3600"}}, onBox)
	processes := map[string]proc{
		"plugin": n.plugin(t), "shim": n.one(t, "shim", n.isShim), "supervisor": n.supervisor(t),
	}
	files, memory := map[string]int{}, map[string]int{}
	for i := range rounds {
		j := job(t, sh("echo said; head -c 1000 /dev/zero > local/file"), onBox, small(round))
		n.submit(t, j)
		testsupport.Within(t, 10*time.Minute, func() error {
			summary, _, err := n.Client().Jobs().Summary(*j.ID, nil)
			if err == nil && summary.Summary["g"].Complete != round {
				err = fmt.Errorf("round %d: %+v", i, summary.Summary["g"])
			}
			return err
		})
		_, _, err := n.Client().Jobs().Deregister(*j.ID, true, nil)
		must.NoError(t, err)
		testsupport.Within(t, 3*time.Minute, func() error {
			left, err := os.ReadDir(filepath.Dir(keep.hostDir()))
			if err != nil || len(left) == 1 {
				return err
			}
			for _, e := range left { // the last ones may have been used just now
				age(t, filepath.Join(filepath.Dir(keep.hostDir()), e.Name()))
			}
			return fmt.Errorf("round %d: the host has directories of %d allocations", i, len(left))
		})
		for name, p := range processes {
			now, err := residentMemory(p.pid)
			must.NoError(t, err, must.Sprintf("the %s has ended", name))
			if i == 0 {
				files[name], memory[name] = descriptors(p.pid), now
			}
			t.Logf("after round %d the %s has %d kB and %d descriptors", i, name, now, descriptors(p.pid))
		}
	}
	for name, p := range processes {
		testsupport.Within(t, time.Minute, func() error {
			if now := descriptors(p.pid); now > files[name] {
				return fmt.Errorf("the %s has %d descriptors, it had %d", name, now, files[name])
			}
			return nil
		})
		testsupport.Within(t, time.Minute, func() error {
			now, err := residentMemory(p.pid)
			if err == nil && now > memory[name]+mostMore {
				err = fmt.Errorf("the %s has %d kB, it had %d", name, now, memory[name])
			}
			return err
		})
	}
	keep.stop(t)
}
