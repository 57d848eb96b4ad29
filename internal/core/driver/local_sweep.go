// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// sweepEvery is the interval of the search for abandoned tasks.
const sweepEvery = 10 * time.Minute

// sweep removes tasks that Nomad has abandoned, and returns their ids. Nomad abandons a task if the plugin is killed
// during RecoverTask: DestroyTask then fails, and is not called again (client/allocrunner/taskrunner/task_runner.go,
// restoreHandle). sweep removes such a task if it has ended, this process does not know it, and its allocation
// directory no longer exists. Nomad also abandons a run if the agent is killed before it records the run, and the job
// is then stopped. sweep removes such a run even while it is running, once its allocation directory no longer exists.
func (l *local) sweep(ctx context.Context) (removed []string) {
	root := l.settings.Load().root
	l.mu.Lock()
	due := time.Since(l.swept) >= sweepEvery && root != ""
	if due {
		l.swept = time.Now()
	}
	l.mu.Unlock()
	if !due {
		return nil
	}
	dirs, err := stores(root)
	if err != nil {
		l.logger.Warn("failed to look for abandoned tasks", "error", err)
	}
	for _, dir := range dirs {
		states, err := task.Store{Dir: dir}.List()
		if err != nil {
			continue
		}
		for _, st := range states {
			if !l.abandoned(st, task.Store{Dir: dir}.Unclaimed(st.ID)) {
				continue
			}
			if err := l.client(dir).Destroy(ctx, st.ID); err != nil {
				l.logger.Warn("failed to remove an abandoned task", "task", st.ID, "error", err)
				continue
			}
			l.release(st.ID)
			removed = append(removed, st.ID)
			l.logger.Info("removed an abandoned task", "task", st.ID)
		}
	}
	return removed
}

func (l *local) abandoned(st *task.State, unclaimed bool) bool {
	if st.Command.TaskDir == "" || st.Identity.PID == 0 {
		return false
	}
	if !unclaimed && (l.task(st.ID) != nil || st.Identity.Alive()) {
		return false
	}
	_, err := os.Lstat(filepath.Dir(st.Command.TaskDir)) // the allocation's directory
	return errors.Is(err, fs.ErrNotExist)
}
