// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/builders"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// leftovers finds what a run of the tests leaves on the machine. Everything that belongs to the run can be told by its
// temporary directory; cgroups and what is in /run/outrider can't, so those that were there before are no leftovers.
// Two runs may go on at once on one machine.
type leftovers struct {
	dir     string          // the run's TMPDIR
	before  map[string]bool // shared places
	ownOnly bool            // without the shared places
}

// newLeftovers makes a temporary directory for a run. Its path is short, since unix sockets are made below it.
func newLeftovers() (*leftovers, error) {
	var dir string
	err := fs.ErrExist
	for id := int64(os.Getpid()); errors.Is(err, fs.ErrExist); id++ { // of a killed run, or of another PID namespace
		dir = filepath.Join(os.TempDir(), "o"+strconv.FormatInt(id, 36))
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return nil, err
	}
	err = os.Chmod(dir, 0o777|fs.ModeSticky) // as /tmp
	if err != nil {
		return nil, err
	}
	return &leftovers{dir: dir, before: sharedPlaces()}, nil
}

// patience is how long what has been told to end may take for it, and another run may keep a cgroup whose task has
// ended.
const patience = time.Minute

// check removes the temporary directory, and returns an error that lists what else the run has left.
func (l *leftovers) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	look := func() []string {
		if l.ownOnly {
			return l.own()
		}
		return append(l.own(), l.newPlaces()...)
	}
	left := look()
	err := poll.Until(ctx, 200*time.Millisecond, func() (bool, error) {
		now := look()
		// what comes and goes in shared places is another run's
		left = slices.DeleteFunc(left, func(thing string) bool { return !slices.Contains(now, thing) })
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("the tests have left (and %s is kept):\n  %s", l.dir, strings.Join(left, "\n  "))
	}
	return os.RemoveAll(l.dir)
}

// own lists what can be told by the temporary directory.
func (l *leftovers) own() []string { return slices.Concat(l.processes(), l.mounts(), l.loopDevices()) }

// processes lists those which were started with the run's TMPDIR, or have to do with what is in it.
func (l *leftovers) processes() (left []string) {
	found, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range found {
		environment, _ := os.ReadFile(filepath.Join(process, "environ"))
		arguments, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		directory, _ := os.Readlink(filepath.Join(process, "cwd"))
		program, _ := os.Readlink(filepath.Join(process, "exe"))
		about := strings.Join([]string{string(environment), string(arguments), directory, program}, "\x00")
		if strings.Contains(about, l.dir) {
			command := strings.ReplaceAll(strings.TrimSuffix(string(arguments), "\x00"), "\x00", " ")
			left = append(left, fmt.Sprintf("process %s: %q in %q", filepath.Base(process), command, directory))
		}
	}
	return left
}

func (l *leftovers) mounts() (left []string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, l.dir) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	return left
}

func (l *leftovers) loopDevices() (left []string) {
	devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, device := range devices {
		file, _ := os.ReadFile(device)
		if strings.Contains(string(file), l.dir) {
			left = append(left, fmt.Sprintf("%s with %s", device, strings.TrimSpace(string(file))))
		}
	}
	return left
}

// newPlaces lists the cgroups without a process, and the state of plugins, that were not there before.
func (l *leftovers) newPlaces() (left []string) {
	for _, place := range slices.Sorted(maps.Keys(sharedPlaces())) {
		if !l.before[place] {
			left = append(left, place)
		}
	}
	return left
}

// nomadParents are cgroups that Nomad makes for itself and keeps.
var nomadParents = []string{"nomad", "share", "reserve", "nomad.slice", "share.slice", "reserve.slice"}

func sharedPlaces() map[string]bool {
	places := map[string]bool{}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // it is gone
		}
		ours := strings.Contains(path, "/nomad") || strings.Contains(path, "outrider")
		if ours && !slices.Contains(nomadParents, filepath.Base(path)) && !hasProcesses(path) {
			places["cgroup "+path] = true
		}
		return nil
	})
	// builders stay declared until the machine reboots
	kept := []string{builders.Dir, filepath.Join(builders.Dir, "lock")}
	// a plugin keeps the directories in which it locks and mounts datasets; one that is killed in the middle of a change
	// leaves the file of its lock, which the next one removes
	datasets := filepath.Join(task.DefaultDir, "dataset")
	locks := filepath.Join(datasets, "locks")
	kept = append(kept, datasets, locks, filepath.Join(datasets, "slots"))
	if testsupport.Exists(builders.Dir) || testsupport.Exists(datasets) {
		kept = append(kept, task.DefaultDir)
	}
	_ = filepath.WalkDir(task.DefaultDir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && !slices.Contains(kept, path) && !strings.HasPrefix(path, locks+"/") {
			places["state "+path] = true
		}
		return nil
	})
	return places
}

// hasProcesses reports whether there is a process in the cgroup or in one below it.
func hasProcesses(cgroup string) (found bool) {
	_ = filepath.WalkDir(cgroup, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil
		}
		processes, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		found = found || len(processes) > 0
		return nil
	})
	return found
}
