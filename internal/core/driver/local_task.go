// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// localTask is a task of the local engine.
type localTask struct {
	engine   *local
	id       string
	client   *supervisor.Client
	storeDir string
	killMode task.KillMode
	unplug   unplug
	preStop  []string
	event    Event

	Ending // holds the exit that WaitTask reports

	mu       sync.Mutex
	state    *task.State // as planned, until watch is called
	watched  bool
	early    *task.Exit // the exit, if it came before watch was called
	sampler  *sampler   // created by the first sample
	oomKills uint64     // number of kills that are already reported
	failure  string     // why the driver has stopped the task, "" if it has not
}

var (
	_ Claimer   = (*localTask)(nil)
	_ Describer = (*localTask)(nil)
	_ Executor  = (*localTask)(nil)
	_ Sampler   = (*localTask)(nil)
	_ Saver     = (*localTask)(nil)
)

// savedTask is this engine's part of a task's handle, which Nomad stores. Fields are only ever added.
type savedTask struct {
	StoreDir string        `json:"store_dir"`
	KillMode task.KillMode `json:"kill_mode"`
	Unplug   unplug        `json:"unplug"`
	PreStop  []string      `json:"pre_stop,omitempty"`
	State    *task.State   `json:"state"` // used if the state on disk is lost
}

// maxSaved limits savedTask, in bytes of JSON. A handle also contains Nomad's copy of the task's configuration, and
// must fit into the message to RecoverTask.
const maxSaved = 1 << 20

// Saved is part of Saver.
func (t *localTask) Saved() ([]byte, error) {
	st := *t.current()
	saved := savedTask{StoreDir: t.storeDir, KillMode: t.killMode, Unplug: t.unplug, PreStop: t.preStop, State: &st}
	b, err := json.Marshal(saved)
	if err == nil && len(b) > maxSaved {
		st.Command.Args, st.Command.Env = nil, nil // only exec needs them later
		b, err = json.Marshal(saved)
	}
	return b, err
}

// load restores a task from the state on disk or, if that can't be read, from the state in its saved handle b.
func (l *local) load(id string, b []byte) (*localTask, error) {
	var saved savedTask
	if err := json.Unmarshal(b, &saved); err != nil {
		return nil, fmt.Errorf("failed to decode task handle: %w", err)
	}
	if !filepath.IsAbs(saved.StoreDir) {
		return nil, errors.New("task handle has no absolute path to the task's state")
	}
	if err := owned(saved.StoreDir); err != nil {
		return nil, err
	}
	st, err := task.Store{Dir: saved.StoreDir}.Load(id)
	if err != nil {
		st = saved.State
	}
	if st == nil || st.ID != id {
		return nil, fmt.Errorf("failed to find the task's state on disk (%w) or in its handle", err)
	}
	return &localTask{
		engine: l, id: id, client: l.client(saved.StoreDir), storeDir: saved.StoreDir, killMode: saved.KillMode,
		unplug: saved.Unplug, preStop: saved.PreStop, state: st,
	}, nil
}

// watch begins to track a task that the client has launched or adopted, and handles an exit that came before.
func (t *localTask) watch(st *task.State) {
	t.mu.Lock()
	t.state, t.watched = st, true
	e := t.early
	t.mu.Unlock()
	if len(st.Command.Devices) > 0 {
		go t.watchDevices(st.Command.Devices)
	}
	if e != nil {
		t.exited(e)
	}
}

// exited is called by the client when the task has ended.
func (t *localTask) exited(e *task.Exit) {
	t.mu.Lock()
	if !t.watched { // wait for the state from watch: it has the OOM kills of earlier runs
		t.early = e
		t.mu.Unlock()
		return
	}
	if t.failure != "" && !e.Lost {
		failed := *e
		failed.Reason = t.failure
		e = &failed
	}
	t.mu.Unlock()
	if e.OOMKilled {
		t.event("OOM: killed %s", t.oomCause())
	} else {
		t.reportOOM(e.OOMKills)
	}
	t.End(e)
}

// reportOOM emits an event if the OOM killer has killed more processes since the last one. It is called for a task that
// still runs, or that has not failed: for other tasks, the exit reports the kill.
func (t *localTask) reportOOM(kills uint64) {
	t.mu.Lock()
	more := kills > max(t.oomKills, t.state.OOMKills)
	t.oomKills = max(t.oomKills, kills)
	t.mu.Unlock()
	if more {
		t.event("OOM: a process of the task was killed %s", t.oomCause())
	}
}

// oomCause returns why a process was killed: the task reached its own limit, or the host or a parent cgroup ran out of
// memory.
func (t *localTask) oomCause() string {
	st := t.current()
	limit := st.Limits.MemoryMax >> 20
	hits, err := st.Group.LimitHits()
	switch {
	case limit <= 0:
		return "because the host is out of memory"
	case err == nil && hits <= st.LimitHits:
		return fmt.Sprintf("because the host or a parent cgroup is out of memory: the task was below its own limit of %d MiB",
			limit)
	default:
		return fmt.Sprintf("at %d MiB of memory", limit)
	}
}

func (t *localTask) current() *task.State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}

// Claim is part of Claimer.
func (t *localTask) Claim() error { return task.Store{Dir: t.storeDir}.Claim(t.id) }

// Describe is part of Describer. It sets no network: processes have the host's addresses, or those of the network
// namespace that Nomad made.
func (t *localTask) Describe(r *Run) {
	st := t.current()
	r.Command, r.StderrFrom = &st.Command, st.Output.StderrFrom
	r.Attributes = map[string]string{"pid": strconv.Itoa(st.Identity.PID)}
}

// Signal is part of Task.
func (t *localTask) Signal(ctx context.Context, signal string) error {
	sig, err := task.ParseSignal(signal)
	if err != nil {
		return err
	}
	return t.signal(ctx, sig, task.KillProcess)
}

func (t *localTask) signal(ctx context.Context, sig unix.Signal, mode task.KillMode) error {
	return t.client.Signal(ctx, t.id, sig, mode)
}

// abandon stops tracking the task in this process. The client must forget the task too, because it reports each exit
// only once, and a later RecoverTask for the task needs the exit again.
func (t *localTask) abandon() {
	t.client.Forget(t.id)
	t.End(nil)
}

func (t *localTask) destroy(ctx context.Context) error {
	if err := t.client.Destroy(ctx, t.id); err != nil {
		return err
	}
	t.engine.release(t.id)
	return nil
}
