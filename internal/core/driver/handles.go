// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"github.com/hashicorp/nomad/plugins/drivers"
)

// handle returns a task that was started or recovered and is not destroyed.
func (d *Driver) handle(id string) (*handle, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.handles[id]; h != nil && h.task != nil {
		return h, nil
	}
	return nil, drivers.ErrTaskNotFound
}

// register adds a task that is being recovered. It returns false if a task with this id exists.
func (d *Driver) register(h *handle) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handles[h.config.ID] != nil {
		return false
	}
	d.handles[h.config.ID] = h
	return true
}

// run registers a task that runs in the engine. It forgets earlier runs of the same task and
// allocation: they have ended, or the engine has returned one of them as this run.
func (d *Driver) run(h *handle, e Engine, t Task) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h.engine, h.task = e, t
	for id, other := range d.handles {
		same := other.config.AllocID == h.config.AllocID && other.config.Name == h.config.Name
		if same && !h.recovered && other.task != nil {
			delete(d.handles, id)
		}
	}
	d.handles[h.config.ID] = h
}

func (d *Driver) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.handles, id)
}

// settled returns a registered task. If DestroyTask or RecoverTask is in progress, it first waits for that call: the
// agent that called DestroyTask may be gone, and another agent may already recover the task.
func (d *Driver) settled(id string) *handle {
	d.mu.Lock()
	h := d.handles[id]
	d.mu.Unlock()
	if h == nil {
		return nil
	}
	h.busy.Lock()
	defer h.busy.Unlock()
	h, _ = d.handle(id)
	return h
}
