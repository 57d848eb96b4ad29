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

// uuid is a glob pattern for node and allocation ids. It rejects incomplete ids, such as "----", because they would
// match the cgroups of other agents, too.
const uuid = "????????-*-*-*-*"

// cgroupMarks returns the marks of an agent: strings in the cgroup names of its tasks, its supervisors, and the tasks
// on its hosts. It derives them from file names, because a process may have exited and left its cgroup behind. For
// example, killing a host's SSH server (a task of exec-lite) also kills the remote driver's supervisor on that host.
func cgroupMarks(data, state string) []string {
	marks := allocMarks(data)
	// supervisors: each has a store <driver>/<node id> (internal/core/driver), in the state directory or in a host's
	// directory below it. A supervisor whose store is elsewhere exits by itself, and removes its store.
	nodes, _ := filepath.Glob(filepath.Join(state, "*", uuid))
	onHosts, _ := filepath.Glob(filepath.Join(state, "*", "*", uuid))
	for _, node := range append(nodes, onHosts...) {
		marks = append(marks, supervisorMark(filepath.Base(node)))
	}
	// tasks on hosts: their cgroups are named after a hash of the host's directory (plugins/remote/shim)
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

// supervisorMark returns the mark of a node's supervisors. Their cgroups are named outrider-<driver>-<the first part of
// the node's id>.
func supervisorMark(node string) string {
	id, _, _ := strings.Cut(node, "-")
	return "-" + id
}

// markedCgroups returns the cgroups of all hierarchies whose paths contain one of the marks, children first.
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

// removeCgroups kills all processes in the marked cgroups, and removes these cgroups.
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
	// cgroup v1: SIGKILL does not end a frozen process until it is thawed
	os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			unix.Kill(pid, unix.SIGKILL) // only the agent's own processes are in marked cgroups
		}
	}
}
