package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// handle is a task that this plugin process knows.
type handle struct {
	config    *drivers.TaskConfig // without the environment, which nobody needs again
	executor  executor
	saved     savedHandle
	recovered bool          // started by an earlier plugin process
	begun     chan struct{} // closed when StartTask is over: state is what runs

	destroying sync.Mutex // held by DestroyTask

	mu        sync.Mutex
	state     *task.State          // as planned, until it was started
	exit      *task.Exit           // kept here too: one waiter may destroy the task before another has read it
	explained chan struct{}        // made with exit, closed when the driver has had its word on it
	waitedFor bool                 // WaitTask was called
	claimed   bool                 // the store says that an agent knows of it
	early     []*drivers.TaskEvent // what happened before
	heardBy   time.Time            // when Nomad will have taken the last event
	stopped   chan struct{}        // made by the first StopTask or DestroyTask, closed when that is over
	remarks   []string             // what happened since then: the exit's message
	told      bool                 // WaitTask has brought the exit
	oomKills  uint64               // of which the user knows
}

// savedHandle is what Nomad keeps for us between StartTask and RecoverTask
// (TaskHandle.DriverState). Old ones come back after an upgrade of the plugin:
// fields are only ever added.
type savedHandle struct {
	StoreDir  string          `codec:"store_dir"`
	KillMode  task.KillMode   `codec:"kill_mode"`
	StartedAt time.Time       `codec:"started_at"`
	State     json.RawMessage `codec:"state"` // a task.State, should the one on disk be lost
}

// maxHandleState keeps handles, which also have Nomad's copy of the task's
// configuration, small enough for a message that brings them back.
const maxHandleState = 1 << 20

func newHandle(cfg *drivers.TaskConfig, e executor, st *task.State, saved savedHandle) *handle {
	saved.State = nil
	return &handle{
		config:   &drivers.TaskConfig{ID: cfg.ID, Name: cfg.Name, AllocID: cfg.AllocID, AllocDir: cfg.AllocDir},
		executor: e, state: st, saved: saved, begun: make(chan struct{}),
	}
}

// claim notes that an agent knows of the task, before it is told anything that it may
// act on: from then on a start of the same task is a new run.
func (h *handle) claim() error {
	h.mu.Lock()
	claimed := h.claimed
	h.mu.Unlock()
	if claimed {
		return nil
	}
	if err := (task.Store{Dir: h.saved.StoreDir}).Claim(h.config.ID); err != nil {
		return fmt.Errorf("failed to note that the agent knows of the task: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claimed = true
	return nil
}

func (h *handle) current() *task.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// run is what a driver is told of the task.
func (h *handle) run() Run {
	st := h.current()
	return Run{
		ID: st.ID, Command: &st.Command, AllocDir: h.config.AllocDir, Task: st.Task, StderrFrom: st.Output.StderrFrom,
	}
}

func (h *handle) started(st *task.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = st
}

func (h *handle) heardAt(by time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heardBy = by
}

// ended notes the exit. The caller closes the channel when it has been explained.
func (h *handle) ended(e *task.Exit) (explained chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.exit, h.explained = e, make(chan struct{})
	return h.explained
}

// result is how the task ended, nil while it runs.
func (h *handle) result() *task.Exit {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.exit != nil {
		return h.exit
	}
	return h.executor.Exit(h.config.ID)
}

func (h *handle) save(th *drivers.TaskHandle) (err error) {
	saved := h.saved // a copy: the encoded state is as large as the task's environment
	st := *h.current()
	if saved.State, err = json.Marshal(&st); err == nil && len(saved.State) > maxHandleState {
		st.Command.Args, st.Command.Env = nil, nil // only commands in the task need them again
		saved.State, err = json.Marshal(&st)
	}
	if err != nil {
		return err
	}
	return th.SetDriverState(&saved)
}

func loadHandle(th *drivers.TaskHandle) (saved savedHandle, st *task.State, err error) {
	if err := th.GetDriverState(&saved); err != nil {
		return saved, nil, fmt.Errorf("failed to decode task handle: %w", err)
	}
	if saved.StoreDir == "" || !filepath.IsAbs(saved.StoreDir) {
		return saved, nil, errors.New("task handle does not say where its state is")
	}
	if err := owned(saved.StoreDir); err != nil {
		return saved, nil, err
	}
	st, err = task.Store{Dir: saved.StoreDir}.Load(th.Config.ID)
	if err == nil {
		return saved, st, nil
	}
	// the disk has no usable state: Nomad's copy is as good
	st = &task.State{}
	if jerr := json.Unmarshal(saved.State, st); jerr != nil || st.ID != th.Config.ID {
		return saved, nil, fmt.Errorf("neither the disk (%w) nor the handle has the task's state", err)
	}
	return saved, st, nil
}

// stopping notes that Nomad ends the task. over is for when it has done so.
func (h *handle) stopping() (over func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped != nil {
		return func() {}
	}
	h.stopped = make(chan struct{})
	return func() { close(h.stopped) }
}

// stopOver is closed when Nomad has ended the task, nil where it does not.
func (h *handle) stopOver() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stopped
}

// tellExit is how the task ended, with what happened while Nomad stopped it.
func (h *handle) tellExit() *drivers.ExitResult {
	r := exitResult(h.result())
	h.mu.Lock()
	remarks := slices.Clone(h.remarks)
	h.told = true
	h.mu.Unlock()
	if r.Err != nil {
		remarks = slices.Insert(remarks, 0, r.Err.Error())
	}
	if len(remarks) > 0 {
		r.Err = errors.New(strings.Join(remarks, "; "))
	}
	return r
}

func (h *handle) status() *drivers.TaskStatus {
	s := &drivers.TaskStatus{
		ID: h.config.ID, Name: h.config.Name, State: drivers.TaskStateRunning, StartedAt: h.saved.StartedAt,
		DriverAttributes: map[string]string{"pid": fmt.Sprint(h.current().Identity.PID)},
	}
	if e := h.result(); e != nil {
		s.State, s.CompletedAt, s.ExitResult = drivers.TaskStateExited, e.At, exitResult(e)
	}
	return s
}

// exitResult says it in Nomad's terms: a signal is an exit code of 128 and its
// number too, as a shell would put it, and a lost exit is an error.
func exitResult(e *task.Exit) *drivers.ExitResult {
	switch {
	case e == nil:
		return &drivers.ExitResult{ExitCode: -1, Err: errors.New("task is lost: nothing is known of it any more")}
	case e.Lost:
		return &drivers.ExitResult{ExitCode: -1, Err: fmt.Errorf("task is lost: %s", e.Reason)}
	case e.Signal != 0:
		return &drivers.ExitResult{ExitCode: 128 + e.Signal, Signal: e.Signal, OOMKilled: e.OOMKilled}
	}
	return &drivers.ExitResult{ExitCode: e.Code, OOMKilled: e.OOMKilled}
}
