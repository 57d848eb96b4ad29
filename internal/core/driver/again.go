package driver

import (
	"context"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// What an agent knew of a task and had not yet written down when it was killed is
// asked for again by its successor, of this process where that lives on.

func runOf(cfg *drivers.TaskConfig) string { return cfg.AllocID + "/" + cfg.Name }

// onlyStart returns when no other start of a run is under way, unless ctx ends, which is
// also an error where it has ended before: of two calls for the same run, the one whose
// agent lives is the later one, and launches later.
func (d *Driver) onlyStart(ctx context.Context, run string) (over func(), err error) {
	for {
		d.mu.Lock()
		if err := ctx.Err(); err != nil {
			d.mu.Unlock()
			return nil, err
		}
		other := d.starts[run]
		if other == nil {
			mine := make(chan struct{})
			d.starts[run] = mine
			d.mu.Unlock()
			return func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				delete(d.starts, run)
				close(mine)
			}, nil
		}
		d.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
		}
	}
}

// forgetEarlier drops what is held of the runs before one that was started: it is one of
// them under another id, or they are gone.
func (d *Driver) forgetEarlier(cfg *drivers.TaskConfig) {
	var earlier []*handle
	d.mu.Lock()
	for id, h := range d.handles {
		if id != cfg.ID && runOf(h.config) == runOf(cfg) {
			earlier = append(earlier, h)
			delete(d.handles, id)
		}
	}
	d.mu.Unlock()
	for _, h := range earlier {
		h.executor.Forget(h.config.ID)
	}
}

// settled returns a task that is known, once it is clear whether it stays so: the agent
// that had it destroyed may be gone, and another one asks for it meanwhile.
func (d *Driver) settled(id string) *handle {
	h, err := d.handle(id)
	if err != nil {
		return nil
	}
	h.destroying.Lock()
	defer h.destroying.Unlock()
	h, _ = d.handle(id)
	return h
}

// destroyed is what is kept of a task that was destroyed: an agent that was killed before
// it noted the end asks for the task once more, and the exit is not on disk any longer.
type destroyed struct {
	id   string
	exit *task.Exit
}

// maxDestroyed is more than ends while an agent starts again.
const maxDestroyed = 1000

// noteDestroyed forgets a task but for its exit.
func (d *Driver) noteDestroyed(h *handle) {
	exit := h.result()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.handles, h.config.ID)
	if exit == nil {
		return
	}
	if len(d.destroyed) == maxDestroyed {
		d.destroyed = append(d.destroyed[:0], d.destroyed[1:]...)
	}
	d.destroyed = append(d.destroyed, destroyed{h.config.ID, exit})
}

func (d *Driver) exitOfDestroyed(id string) *task.Exit {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.destroyed {
		if t.id == id {
			return t.exit
		}
	}
	return nil
}
