// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// uuid is the glob pattern of node and allocation ids. A shorter id would be part of other agents' cgroup names, too.
const uuid = "????????-*-*-*-*"

// cgroupMarks returns strings that are in the cgroup names of an agent's tasks, supervisors and hosts. It derives them
// from files, since the processes may have exited. For example, killing the SSH server of a host (a task of exec-lite)
// also kills the remote driver's supervisor on that host.
func cgroupMarks(data, state string) []string {
	marks := allocMarks(data)
	// supervisors, by their stores <driver>/<node> (internal/core/driver), which can also be in a host's directory. A
	// supervisor with its store elsewhere exits by itself, and removes its store.
	nodes, _ := filepath.Glob(filepath.Join(state, "*", uuid))
	onHosts, _ := filepath.Glob(filepath.Join(state, "*", "*", uuid))
	for _, node := range append(nodes, onHosts...) {
		marks = append(marks, supervisorMark(filepath.Base(node)))
	}
	// tasks on a host, by the host's directory (plugins/remote/shim)
	hosts, _ := filepath.Glob(filepath.Join(state, "*/runs"))
	for _, runs := range hosts {
		marks = append(marks, fmt.Sprintf("outrider-tasks-%.4x", sha256.Sum256([]byte(filepath.Dir(runs)))))
	}
	return marks
}

// allocMarks returns the marks of tasks: their allocation ids.
func allocMarks(data string) (marks []string) {
	allocs, _ := filepath.Glob(filepath.Join(data, "alloc", uuid))
	for _, dir := range allocs {
		marks = append(marks, filepath.Base(dir))
	}
	return marks
}

// supervisorMark returns the mark of a node's supervisors. Their cgroups are named
// outrider-<driver>-<the first part of the node's id>.
func supervisorMark(node string) string {
	id, _, _ := strings.Cut(node, "-")
	return "-" + id
}

// markedCgroups returns the cgroups, of any hierarchy, with one of the marks in their paths, children first.
func markedCgroups(marks []string) (dirs []string) {
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // a cgroup may be removed during the walk
		}
		for _, mark := range marks {
			if strings.Contains(path, mark) {
				dirs = append([]string{path}, dirs...)
				break
			}
		}
		return nil
	})
	return dirs
}

// removeCgroups kills the processes in the cgroups with these marks, and removes the cgroups.
func removeCgroups(ctx context.Context, marks []string) error {
	for _, dir := range markedCgroups(marks) {
		var removal error
		err := poll.Until(ctx, 10*time.Millisecond, func() (bool, error) {
			killCgroup(dir)
			removal = os.Remove(dir)
			return removal == nil || errors.Is(removal, fs.ErrNotExist), nil
		})
		if err != nil {
			return fmt.Errorf("failed to remove cgroup: %w", removal)
		}
	}
	return nil
}

func killCgroup(dir string) {
	// in a frozen v1 cgroup, SIGKILL has no effect until the thaw
	os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			unix.Kill(pid, unix.SIGKILL) // the cgroup belongs to a task of our agent
		}
	}
}
