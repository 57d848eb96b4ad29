// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
)

// StateVersion is written into every State. A reader accepts any version up to its own; fields are only ever added.
const StateVersion = 1

// State contains everything that a new process needs to find a task again, to report how it ended
// and to clean up after it. The supervisor keeps it on disk (Store); the driver keeps a copy in
// Nomad's task handle.
type State struct {
	Version int `json:"version"`

	// ID is Nomad's task ID, new for each start of a task: <alloc id>/<task>/<8 hex>.
	ID      string `json:"id"`
	AllocID string `json:"alloc_id"`
	Task    string `json:"task"`

	Command Command       `json:"command"`
	Limits  cgroup.Limits `json:"limits"`
	Group   cgroup.Group  `json:"group"`
	Output  Output        `json:"output"`

	// Request is a hash of the driver's request. It is equal for two calls that request the same
	// run, even if their IDs differ. An empty Request equals no other.
	Request string `json:"request,omitempty"`

	// DynamicUser is set if Nomad has given the command's user to this task alone.
	DynamicUser bool `json:"dynamic_user,omitempty"`

	// Identity is the main process; its PID is 0 until the process is forked.
	Identity Identity `json:"identity"`

	// OOMKills is the cgroup's count of OOM kills at the start. It may include kills of earlier runs: Nomad uses one
	// cgroup for all runs of a task in an allocation.
	OOMKills uint64 `json:"oom_kills,omitempty"`

	// LimitHits is how often the cgroup had hit its memory limit at the start.
	LimitHits uint64 `json:"limit_hits,omitempty"`

	// Mounts is the mount namespace that the task was started in: its own if the command needs one (OwnMounts), and
	// otherwise the supervisor's. It is missing in a State of an earlier version. The main process's present namespace is
	// no substitute, since the process may have created it.
	Mounts *MountNamespace `json:"mounts,omitempty"`
}

// MountNamespace identifies a mount namespace while it exists.
type MountNamespace struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`

	// ID is never reused, unlike an inode. It is 0 before Linux 6.11 (NS_GET_MNTNS_ID, ioctl_ns(2)).
	ID uint64 `json:"id,omitempty"`
}

// Output describes the destination of a task's stdout and stderr.
type Output struct {
	// Collector selects the process that writes the output to the log files.
	Collector Collector `json:"collector"`

	// AllocDir is the allocation's directory, or empty with CollectorNone. The log files are
	// <AllocDir>/alloc/logs/<Task>.stdout.N (and .stderr.N).
	AllocDir    string `json:"alloc_dir,omitempty"`
	MaxFiles    int    `json:"max_files,omitempty"`
	MaxFileSize int64  `json:"max_file_size,omitempty"` // bytes

	// StderrFrom is where stderr ended before the start. Anything before it was written by earlier runs.
	StderrFrom LogPlace `json:"stderr_from,omitzero"`

	// FIFOs are the inodes of the FIFOs stdout and stderr in the task's directory. Used by CollectorDriver.
	FIFOs [2]Inode `json:"fifos,omitzero"`

	// Stdout and Stderr are the FIFOs of Nomad's logmon, or os.DevNull. Used by CollectorNomad.
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
}

// LogPlace is a position in the log files of a stream: a file number and a byte offset.
type LogPlace struct {
	File   int   `json:"file"`
	Offset int64 `json:"offset"`
}

// Collector names the collector of a task's output.
type Collector string

// The collectors.
const (
	CollectorDriver Collector = "driver" // package collector
	CollectorNomad  Collector = "nomad"  // Nomad's logmon
	CollectorNone   Collector = "none"   // not collected: the job has logs { disabled = true }
)

// ErrNoState is returned for a task without a state file.
var ErrNoState = errors.New("the task has no state on disk")

// DefaultDir contains the stores of plugins that run as root, unless the operator configures another directory. It is
// removed with the last store.
const DefaultDir = "/run/outrider"

// Store is the directory in which one supervisor keeps the states of its tasks:
// <state_dir>/<plugin>/<node id>. Only its owner can read it (mode 0700), since environments
// contain secrets.
type Store struct{ Dir string }

// Socket is the path of the supervisor's listening socket.
func (s Store) Socket() string { return filepath.Join(s.Dir, "supervisor.sock") }

// Log is the path of the supervisor's log.
func (s Store) Log() string { return filepath.Join(s.Dir, "supervisor.log") }

// TaskDir is the directory of one task's files: task.json, record, and the FIFOs stdout and
// stderr. Its name is a hash, since an id contains slashes and has no length limit.
func (s Store) TaskDir(id string) string {
	// not a cryptographic hash, because initializing its package would cost time in each launcher process
	sum := fnv.New128a()
	sum.Write([]byte(id))
	return filepath.Join(s.Dir, "tasks", hex.EncodeToString(sum.Sum(nil)))
}

// FIFO is the path of the FIFO for a stream, "stdout" or "stderr".
func (s Store) FIFO(id, stream string) string { return filepath.Join(s.TaskDir(id), stream) }

// Save writes a state by atomic rename, and makes the directory if it is missing.
func (s Store) Save(st *State) error {
	if err := os.MkdirAll(s.TaskDir(st.ID), 0o700); err != nil {
		return err
	}
	st.Version = StateVersion
	return writeJSON(filepath.Join(s.TaskDir(st.ID), "task.json"), st)
}

// Load reads a task's state. The error is ErrNoState only if the state is missing, not if it is truncated or was
// written by a newer version.
func (s Store) Load(id string) (*State, error) { return loadState(s.TaskDir(id)) }

// unclaimed is the name of the marker file of a run that no agent has recorded.
const unclaimed = "unclaimed"

// MarkUnclaimed marks a task that no agent has recorded yet: if the agent is killed now, the next one does not know the
// task's id. Call it after Save and before the program runs.
func (s Store) MarkUnclaimed(id string) error {
	return os.WriteFile(filepath.Join(s.TaskDir(id), unclaimed), nil, 0o600)
}

// Claim removes the mark of MarkUnclaimed permanently, after an agent has recorded the task. It is not an error if the
// task is claimed already or has no files.
func (s Store) Claim(id string) error {
	if !s.Unclaimed(id) { // on a read-only disk, os.Remove would fail even without a mark
		return nil
	}
	if err := os.Remove(filepath.Join(s.TaskDir(id), unclaimed)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Unclaimed reports whether the task is marked by MarkUnclaimed.
func (s Store) Unclaimed(id string) bool {
	_, err := os.Lstat(filepath.Join(s.TaskDir(id), unclaimed))
	return err == nil
}

// Rename changes the id of a task, on disk and in st. If the process is killed during the call,
// the next List completes it. On an error the task keeps its old id.
func (s Store) Rename(st *State, id string) error {
	old, dir := st.ID, s.TaskDir(st.ID)
	st.ID = id
	err := writeJSON(filepath.Join(dir, "task.json"), st)
	if err == nil {
		if err = s.place(dir, id); err == nil {
			return nil
		}
	}
	st.ID = old
	return errors.Join(err, writeJSON(filepath.Join(dir, "task.json"), st))
}

// place moves a task's directory to the path for its id.
func (s Store) place(dir, id string) error {
	err := os.Rename(dir, s.TaskDir(id))
	if errors.Is(err, fs.ErrNotExist) { // a concurrent List has moved it already
		_, err = os.Lstat(s.TaskDir(id))
	}
	return err
}

// List returns the states of all tasks, except those that cannot be read. It also completes an interrupted Rename.
func (s Store) List() (states []*State, err error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, "tasks"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		dir := filepath.Join(s.Dir, "tasks", e.Name())
		st, err := loadState(dir)
		if err == nil && s.TaskDir(st.ID) != dir {
			err = s.place(dir, st.ID)
		}
		if err == nil {
			states = append(states, st)
		}
	}
	return states, nil
}

// Remove deletes all files of a task. It is not an error if there are none.
func (s Store) Remove(id string) error { return os.RemoveAll(s.TaskDir(id)) }

// Retired is the directory of the records of destroyed tasks.
func (s Store) Retired() string { return filepath.Join(s.Dir, "retired") }

// Retire deletes all files of a task except its record, which LoadExit still reads. It returns the
// record's new path, or "" if the record could not be kept.
func (s Store) Retire(id string) (path string, err error) {
	path = s.retired(id)
	err = os.Rename(s.Record(id), path)
	if errors.Is(err, fs.ErrNotExist) {
		_ = os.Mkdir(s.Retired(), 0o700)
		err = os.Rename(s.Record(id), path)
	}
	if err != nil { // best effort: without a record the exit is forgotten
		path = ""
	}
	return path, s.Remove(id)
}

func (s Store) retired(id string) string {
	return filepath.Join(s.Retired(), filepath.Base(s.TaskDir(id)))
}

func loadState(dir string) (*State, error) {
	var st State
	err := readJSON(filepath.Join(dir, "task.json"), &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNoState
	case err != nil:
		return nil, fmt.Errorf("the task's state is unreadable: %w", err)
	case st.Version > StateVersion || st.ID == "":
		return nil, fmt.Errorf("the task's state is unreadable: version %d is unknown, or the id is missing", st.Version)
	}
	return &st, nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	// no fsync: if the kernel crashes, the task is gone as well
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
