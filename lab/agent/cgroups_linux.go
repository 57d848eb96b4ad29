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

// uuid is the form of the ids of nodes and allocations. Anything shorter would be in the names of others' cgroups, too.
const uuid = "????????-*-*-*-*"

// cgroupMarks are in the names of the cgroups of an agent's tasks, and of its plugins' supervisors and hosts. They are
// found by files, since the processes may have ended: exec-lite kills a supervisor on a host of the remote driver with
// the SSH server that is its task.
func cgroupMarks(data, state string) []string {
	marks := allocMarks(data)
	// of supervisors, by their stores <driver>/<node> (internal/core/driver), which a host's directory has, too. One
	// whose store is not in the state directory ends by itself, and removes that.
	nodes, _ := filepath.Glob(filepath.Join(state, "*", uuid))
	onHosts, _ := filepath.Glob(filepath.Join(state, "*", "*", uuid))
	for _, node := range append(nodes, onHosts...) {
		marks = append(marks, supervisorMark(filepath.Base(node)))
	}
	// of the tasks on a host, by its directory (plugins/remote/shim)
	hosts, _ := filepath.Glob(filepath.Join(state, "*/runs"))
	for _, runs := range hosts {
		marks = append(marks, fmt.Sprintf("outrider-tasks-%.4x", sha256.Sum256([]byte(filepath.Dir(runs)))))
	}
	return marks
}

// allocMarks are those of tasks: the ids of the allocations.
func allocMarks(data string) (marks []string) {
	allocs, _ := filepath.Glob(filepath.Join(data, "alloc", uuid))
	for _, dir := range allocs {
		marks = append(marks, filepath.Base(dir))
	}
	return marks
}

// supervisorMark is that of a node's supervisors: outrider-<driver>-<the first part of the node's id>.
func supervisorMark(node string) string {
	id, _, _ := strings.Cut(node, "-")
	return "-" + id
}

// markedCgroups returns the cgroups of any hierarchy with one of the marks in their names, and those below them,
// children first.
func markedCgroups(marks []string) (dirs []string) {
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // a cgroup may go away while we look
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

// removeCgroups kills what is in the cgroups with these marks, and removes them.
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
	// a frozen v1 cgroup holds back SIGKILL
	os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			unix.Kill(pid, unix.SIGKILL) // it is in the cgroup of a task of ours
		}
	}
}
