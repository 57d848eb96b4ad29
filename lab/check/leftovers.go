// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// leftovers finds resources that a test run did not remove. The run's temporary directory identifies everything that
// belongs to it, except cgroups and files in /run/outrider: of these, only new ones count. Two runs can be active at
// the same time on one machine.
type leftovers struct {
	dir    string          // the run's TMPDIR
	before map[string]bool // the shared places before the run
}

// newLeftovers creates a temporary directory for a run. Its path is short, since unix sockets are created below it.
func newLeftovers() (*leftovers, error) {
	for id := int64(os.Getpid()); ; id++ {
		dir := filepath.Join(os.TempDir(), "o"+strconv.FormatInt(id, 36))
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) { // the directory of a killed run, or of a run in another PID namespace
			continue
		}
		if err != nil {
			return nil, err
		}
		return &leftovers{dir: dir, before: sharedPlaces()}, os.Chmod(dir, 0o777|fs.ModeSticky) // like /tmp
	}
}

// patience is how long a stopped process may take to exit, and how long another run may keep an ended task's cgroup.
const patience = time.Minute

// check removes the temporary directory. If it finds leftovers, it keeps the directory and returns an error that lists
// them.
func (l *leftovers) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	left := l.look()
	err := poll.Until(ctx, 200*time.Millisecond, func() (bool, error) {
		now := l.look()
		// cgroups and files that come and go in shared places belong to another run
		left = slices.DeleteFunc(left, func(thing string) bool { return !slices.Contains(now, thing) })
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("the tests have left resources behind (%s is kept):\n  %s", l.dir, strings.Join(left, "\n  "))
	}
	return os.RemoveAll(l.dir)
}

// places are files and links that show a use of the temporary directory: by processes that have it as TMPDIR or use
// files in it, by mounts, and by loop devices.
var places = []string{"/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "/proc/[0-9]*/cwd", "/proc/[0-9]*/exe",
	"/proc/self/mountinfo", "/sys/block/loop*/loop/backing_file"}

// own lists the leftovers that the temporary directory identifies.
func (l *leftovers) own() (left []string) {
	for _, pattern := range places {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			text, _ := os.ReadFile(path)
			link, _ := os.Readlink(path)
			for line := range strings.Lines(string(text) + "\n" + link) {
				if strings.Contains(line, l.dir) {
					command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
					left = append(left, fmt.Sprintf("%s has %.200q (command %q)", path, line, command))
				}
			}
		}
	}
	return left
}

// look lists all current leftovers.
func (l *leftovers) look() []string {
	left := l.own()
	for place := range sharedPlaces() {
		if !l.before[place] {
			left = append(left, place)
		}
	}
	return left
}

var (
	shared = regexp.MustCompile(`^/sys/fs/cgroup/.*(/nomad|outrider)|^` + task.DefaultDir + `/`)
	// kept matches the cgroups that Nomad creates for itself, and the directories in which a plugin locks and mounts
	// datasets. A plugin that is killed during a change leaves its lock there; the next plugin removes the lock.
	kept = regexp.MustCompile(`^/sys/.*/(nomad|share|reserve)(\.slice)?$|/dataset(/slots|/locks.*)?$`)
)

// sharedPlaces returns the cgroups without a process, and the files of the plugins' state.
func sharedPlaces() map[string]bool {
	places := map[string]bool{}
	for _, root := range []string{"/sys/fs/cgroup", task.DefaultDir} {
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			counts := err == nil && (entry.IsDir() || root == task.DefaultDir) // an error means that the path was removed
			if counts && shared.MatchString(path) && !kept.MatchString(path) && !hasProcesses(path) {
				places[path] = true
			}
			return nil
		})
	}
	return places
}

// hasProcesses reports whether a cgroup or one below it has a process.
func hasProcesses(cgroup string) (found bool) {
	_ = filepath.WalkDir(cgroup, func(path string, _ fs.DirEntry, _ error) error {
		processes, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		found = found || len(processes) > 0
		return nil
	})
	return found
}
