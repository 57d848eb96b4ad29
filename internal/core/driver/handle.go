// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// handle is a task that this plugin process has started or recovered.
type handle struct {
	config    *drivers.TaskConfig // only the fields that the lifecycle needs
	startedAt time.Time
	recovered bool // started by an earlier plugin process
	task      Task // task and engine are set before any other goroutine gets the handle
	engine    Engine

	busy sync.Mutex // held while the task is recovered, or destroyed

	exitSeen  sync.Once
	explained chan struct{} // closed when the driver has explained the exit

	mu          sync.Mutex
	waitedFor   bool                 // WaitTask was called
	pending     []*drivers.TaskEvent // events before the first WaitTask
	deliveredBy time.Time            // when Nomad should have taken the last event
	stopped     chan struct{}        // created by the first StopTask or DestroyTask, closed when that call returns
	exitMessage []string             // messages reported since stopped was created
	exitSent    bool                 // WaitTask has returned the exit
}

// savedHandle is the state that Nomad stores between StartTask and RecoverTask (TaskHandle.DriverState). After an
// upgrade, the plugin reads the handles of earlier versions: add fields, but never change or remove one.
type savedHandle struct {
	StartedAt time.Time `codec:"started_at"`
	Task      []byte    `codec:"task"` // the result of Saver.Saved
}

func newHandle(cfg *drivers.TaskConfig) *handle {
	return &handle{
		config:    &drivers.TaskConfig{ID: cfg.ID, Name: cfg.Name, AllocID: cfg.AllocID, AllocDir: cfg.AllocDir},
		explained: make(chan struct{}),
	}
}

func loadHandle(th *drivers.TaskHandle) (*handle, []byte, error) {
	var saved savedHandle
	if err := th.GetDriverState(&saved); err != nil {
		return nil, nil, fmt.Errorf("failed to decode task handle: %w", err)
	}
	h := newHandle(th.Config)
	h.startedAt, h.recovered = saved.StartedAt, true
	return h, saved.Task, nil
}

func (h *handle) save(cfg *drivers.TaskConfig) (*drivers.TaskHandle, error) {
	var saved []byte
	if t, ok := h.task.(Saver); ok {
		var err error
		if saved, err = t.Saved(); err != nil {
			return nil, err
		}
	}
	th := drivers.NewTaskHandle(1)
	th.Config, th.State = cfg, drivers.TaskStateRunning
	return th, th.SetDriverState(&savedHandle{StartedAt: h.startedAt, Task: saved})
}

// claim records that an agent knows of the task.
func (h *handle) claim() error {
	c, ok := h.task.(Claimer)
	if !ok {
		return nil
	}
	if err := c.Claim(); err != nil {
		return fmt.Errorf("failed to record that the agent knows of the task: %w", err)
	}
	return nil
}

// run describes the task to the driver.
func (h *handle) run() Run {
	r := Run{ID: h.config.ID, AllocDir: h.config.AllocDir, Task: h.config.Name}
	if t, ok := h.task.(Describer); ok {
		t.Describe(&r)
	}
	return r
}

func (h *handle) hasEnded() bool {
	select {
	case <-h.task.Ended():
		return true
	default:
		return false
	}
}

func (h *handle) delivered(by time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deliveredBy = by
}

// stopping records that Nomad stops or destroys the task. The caller must call the returned function when the stop is
// complete.
func (h *handle) stopping() (over func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped != nil {
		return func() {}
	}
	h.stopped = make(chan struct{})
	return func() { close(h.stopped) }
}

// stopOver returns a channel that is closed when Nomad has stopped the task, or nil if no stop has begun.
func (h *handle) stopOver() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stopped
}

// exitWithMessage returns the exit of the task, with the messages reported while Nomad stopped it.
func (h *handle) exitWithMessage() *drivers.ExitResult {
	r := exitResult(h.task.Exit())
	h.mu.Lock()
	message := slices.Clone(h.exitMessage)
	h.exitSent = true
	h.mu.Unlock()
	if r.Err != nil {
		message = slices.Insert(message, 0, r.Err.Error())
	}
	if len(message) > 0 {
		r.Err = errors.New(plain.Text(strings.Join(message, "; ")))
	}
	return r
}

func (h *handle) status() *drivers.TaskStatus {
	s := &drivers.TaskStatus{
		ID: h.config.ID, Name: h.config.Name, State: drivers.TaskStateRunning, StartedAt: h.startedAt,
		DriverAttributes: h.run().Attributes,
	}
	if h.hasEnded() {
		e := h.task.Exit()
		s.State, s.ExitResult = drivers.TaskStateExited, exitResult(e)
		if e != nil {
			s.CompletedAt = e.At
		}
	}
	return s
}

// exitResult converts an exit to Nomad's type. After a signal, the exit code is 128 plus the signal's number, as in a
// shell. An unknown or lost exit becomes an error.
func exitResult(e *task.Exit) *drivers.ExitResult {
	switch {
	case e == nil:
		return &drivers.ExitResult{ExitCode: -1, Err: errors.New("task is lost: no record of it exists")}
	case e.Lost:
		return &drivers.ExitResult{ExitCode: -1, Err: fmt.Errorf("task is lost: %s", e.Reason)}
	}
	r := &drivers.ExitResult{ExitCode: e.Code, OOMKilled: e.OOMKilled}
	if e.Signal != 0 {
		r.ExitCode, r.Signal = 128+e.Signal, e.Signal
	}
	if e.Reason != "" { // the driver has ended the task
		r.Err = errors.New(e.Reason)
	}
	return r
}
