// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// knowSlice learns where the cgroups of the host's tasks are.
func (x *table) knowSlice(t *testing.T, list []*cell) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range list {
		if c.kind != "box" || x.slice != "" {
			continue
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.was.pid))
		must.NoError(t, err)
		x.slice = regexp.MustCompile(`outrider\.slice/[^/]+`).FindString(string(b))
		must.NotEq(t, "", x.slice, must.Sprintf("the task has no cgroup of its own: %s", b))
		must.SliceNotEmpty(t, x.groups(), must.Sprint(x.slice))
		must.SliceNotEmpty(t, x.onHost("outrider-supervisor"))
	}
}

// groups are the directories of the slice, in cgroup v1 and v2.
func (x *table) groups() (found []string) {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, _ := filepath.Glob(filepath.Join(root, x.slice))
		found = append(found, dirs...)
	}
	return found
}

// onHost are the processes on the host whose program's name begins so.
func (x *table) onHost(name string) (pids []int) {
	all, err := task.Processes()
	if err != nil {
		return nil
	}
	for _, st := range task.Descendants(all, x.box.Process.PID) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", st.PID))
		program, _, _ := strings.Cut(string(b), "\x00")
		if strings.HasPrefix(filepath.Base(program), name) {
			pids = append(pids, st.PID)
		}
	}
	return pids
}

// ends ends the agents, and sees that nothing of theirs is left here, on the host and in the engine. See empty, too.
func (x *table) ends(t *testing.T) {
	t.Helper()
	bin := filepath.Join(x.state, "bin")
	test.NoError(t, x.Close(t.Context()))
	testsupport.Within(t, time.Minute, func() error { // the supervisor waits for 10 s
		for _, name := range []string{"outrider-shim", "outrider-supervisor"} {
			if left := x.onHost(name); len(left) > 0 {
				return fmt.Errorf("%s is left on the host: %v", name, left)
			}
		}
		here := testsupport.Processes(func(args []string) bool { return strings.HasPrefix(args[0], x.dir) })
		if len(here) > 0 {
			return fmt.Errorf("processes are left here: %v", here)
		}
		if x.slice != "" {
			if left := x.groups(); len(left) > 0 {
				return fmt.Errorf("cgroups are left: %v", left)
			}
		}
		shims, err := os.ReadDir(bin)
		if err != nil || len(shims) != 1 || strings.Contains(shims[0].Name(), ".upload-") {
			return fmt.Errorf("one shim is to be in %s: %v, %w", bin, shims, err)
		}
		return sockets(x.state)
	})
}

// sockets is an error that names those below a directory.
func sockets(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSocket != 0 {
			err = fmt.Errorf("socket %s is left", path)
		}
		return err
	})
}
