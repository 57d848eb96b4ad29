package driver

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// sweepEvery is how often what Nomad gave up is looked for.
const sweepEvery = 10 * time.Minute

// sweep removes what is kept of tasks that Nomad gave up: where a plugin is killed
// while Nomad recovers a task with it, DestroyTask fails, and is not called again
// (client/allocrunner/taskrunner/task_runner.go, restoreHandle). Such a task has
// ended, this process does not know it, and its allocation is gone from the disk. The
// same goes for a run of which no agent knows, whether it has ended or not: its job was
// stopped before another agent asked for it.
func (d *Driver) sweep() {
	d.mu.Lock()
	due := time.Since(d.swept) >= sweepEvery
	if due {
		d.swept = time.Now()
	}
	root := d.root
	d.mu.Unlock()
	if !due || root == "" {
		return
	}
	dirs, err := stores(root)
	if err != nil {
		d.logger.Warn("failed to look for tasks that Nomad gave up", "error", err)
	}
	for _, dir := range dirs {
		states, _, err := task.Store{Dir: dir}.List()
		if err != nil {
			continue
		}
		for _, st := range states {
			if !d.givenUp(st, task.Store{Dir: dir}.Unclaimed(st.ID)) {
				continue
			}
			if err := d.executor(dir).Destroy(d.ctx, st.ID); err != nil {
				d.logger.Warn("failed to remove what is left of a task", "task", st.ID, "error", err)
				continue
			}
			d.forget(st.ID)
			d.logger.Info("removed what was left of a task that Nomad gave up", "task", st.ID)
		}
	}
}

func (d *Driver) givenUp(st *task.State, unclaimed bool) bool {
	if st.Output.AllocDir == "" || st.Identity.PID == 0 {
		return false
	}
	if _, err := d.handle(st.ID); !unclaimed && (err == nil || st.Identity.Alive()) {
		return false
	}
	_, err := os.Lstat(st.Output.AllocDir)
	return errors.Is(err, fs.ErrNotExist)
}
