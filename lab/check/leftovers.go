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

// leftovers finds resources that a test run did not remove, even while other runs are active on this machine. Most
// resources are recognised by the run's temporary directory, whose path they contain. Cgroups and files in
// /run/outrider do not contain it: of these, the ones that did not exist before the run count.
type leftovers struct {
	dir    string          // the run's TMPDIR
	before map[string]bool // result of sharedPlaces before the run
}

// newLeftovers creates a run's temporary directory. Its path is short, to fit into the addresses of unix sockets.
func newLeftovers() (*leftovers, error) {
	for id := int64(os.Getpid()); ; id++ {
		dir := filepath.Join(os.TempDir(), "o"+strconv.FormatInt(id, 36))
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) { // left by a killed run, or used by a run in another PID namespace
			continue
		}
		if err != nil {
			return nil, err
		}
		return &leftovers{dir: dir, before: sharedPlaces()}, os.Chmod(dir, 0o777|fs.ModeSticky) // like /tmp
	}
}

// patience is how long check waits for stopped processes to exit, and for other runs to remove cgroups.
const patience = time.Minute

// check waits until no leftovers remain, and removes the temporary directory. If some remain after patience, check
// keeps the directory and returns an error that lists them.
func (l *leftovers) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	left := l.look()
	err := poll.Until(ctx, 200*time.Millisecond, func() (bool, error) {
		now := l.look()
		// ignore paths that appear after the first look: other runs create and remove cgroups and files
		left = slices.DeleteFunc(left, func(thing string) bool { return !slices.Contains(now, thing) })
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("the tests have left resources behind (%s is kept):\n  %s", l.dir, strings.Join(left, "\n  "))
	}
	return os.RemoveAll(l.dir)
}

// places are the files and links that contain the temporary directory's path while it is in use: by a process (as
// TMPDIR, in the arguments, as working directory or program), as or below a mount point, or by a loop device.
var places = []string{"/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "/proc/[0-9]*/cwd", "/proc/[0-9]*/exe",
	"/proc/self/mountinfo", "/sys/block/loop*/loop/backing_file"}

// own returns the leftovers that contain the path of the temporary directory.
func (l *leftovers) own() (left []string) {
	for _, pattern := range places {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			text, _ := os.ReadFile(path)
			link, _ := os.Readlink(path)
			for line := range strings.Lines(string(text) + "\n" + link) {
				if strings.Contains(line, l.dir) {
					command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
					left = append(left, fmt.Sprintf("%s contains %.200q (command %q)", path, line, command))
				}
			}
		}
	}
	return left
}

// look returns all leftovers that exist now.
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
	// kept matches paths that may stay: cgroups that Nomad creates for itself, and directories in which a plugin locks and
	// mounts datasets. If a plugin is killed, its lock stays until the next plugin removes it.
	kept = regexp.MustCompile(`^/sys/.*/(nomad|share|reserve)(\.slice)?$|/dataset(/slots|/locks.*)?$`)
)

// sharedPlaces returns Nomad's and the plugins' cgroups without processes, and the paths in /run/outrider.
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

// hasProcesses reports whether a cgroup, or any cgroup below it, has processes.
func hasProcesses(cgroup string) (found bool) {
	_ = filepath.WalkDir(cgroup, func(path string, _ fs.DirEntry, _ error) error {
		processes, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		found = found || len(processes) > 0
		return nil
	})
	return found
}
