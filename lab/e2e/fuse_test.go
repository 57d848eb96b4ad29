// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// hungMount is a FUSE file system that nobody serves: whoever touches it waits
// until release.
func hungMount(t *testing.T) (dir string, release func()) {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "fuse")
	must.NoError(t, err)
	t.Cleanup(func() { os.Remove(dir) })
	return dir, testsupport.HungMount(t, dir)
}

func TestHungFileSystem_HarmsNoOtherTask(t *testing.T) {
	dir, release := hungMount(t)
	t.Parallel()
	n := common(t)
	talker := n.start(t, conf{"command": counter})
	defer talker.stop(t)

	hung := []*alloc{
		n.submit(t, job(t, conf{"command": dir + "/program"})),
		n.submit(t, job(t, sh("true").with(conf{"work_dir": dir + "/below"}))),
	}
	for _, a := range hung {
		testsupport.Within(t, time.Minute, func() error {
			if len(n.tasksOf(a.id)) == 0 {
				return fmt.Errorf("the start of %s has not begun", a.job)
			}
			return nil
		})
	}
	before := talker.output(t, "stdout")
	var others []*alloc
	for range 20 {
		others = append(others, n.submit(t, job(t, sh("echo said; exit 3"))))
	}
	for _, a := range others {
		if got := a.ended(t); got != "exit 3" {
			t.Errorf("another task: got %s: %s", got, a.story())
		}
		test.Eq(t, "said\n", a.output(t, "stdout"), test.Sprint("another task: output"))
	}
	testsupport.Within(t, time.Minute, func() error {
		now := talker.output(t, "stdout")
		lines, _, err := numbered(now)
		if err == nil && len(now) < len(before)+500 {
			err = fmt.Errorf("a running task has said %d lines, %d bytes after %d", lines, len(now), len(before))
		}
		return err
	})
	for _, a := range hung {
		if _, st, err := a.info(); err != nil || st.State != "pending" {
			t.Errorf("the hung task is %s, %v: %s", st.State, err, a.story())
		}
	}
	release()
	for _, a := range hung {
		a.ended(t)
		test.StrContains(t, a.story(), dir, test.Sprint("no event says what failed"))
		test.SliceEmpty(t, n.tasksOf(a.id), test.Sprintf("state is left of %s", a.job))
	}
}
