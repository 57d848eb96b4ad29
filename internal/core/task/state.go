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

// StateVersion is written into every State. A reader takes any version up to its
// own; fields are only ever added.
const StateVersion = 1

// State is everything that is needed to find a task again, to tell how it ended
// and to clean up after it, by a process that has never seen it. The supervisor
// keeps it on disk (Store); the driver keeps a copy in Nomad's task handle.
type State struct {
	Version int `json:"version"`

	// ID is Nomad's, new for each start of a task: <alloc id>/<task>/<8 hex>.
	ID      string `json:"id"`
	AllocID string `json:"alloc_id"`
	Task    string `json:"task"`

	Command Command       `json:"command"`
	Limits  cgroup.Limits `json:"limits"`
	Group   cgroup.Group  `json:"group"`
	Output  Output        `json:"output"`

	// Request is the same for two calls that ask for the same run, whatever their IDs:
	// a hash of what the driver was asked for. Where it is empty nothing is the same.
	Request string `json:"request,omitempty"`

	// Identity is the main process; its PID is 0 until it was forked.
	Identity Identity `json:"identity"`

	// OOMKills is the cgroup's count of OOM kills at the start: Nomad uses one
	// cgroup for all runs of a task in an allocation.
	OOMKills uint64 `json:"oom_kills,omitempty"`

	// LimitHits is the cgroup's count of them at the start.
	LimitHits uint64 `json:"limit_hits,omitempty"`

	// Mounts is the mount namespace that was made for the task, where its command needs
	// one (OwnMounts). Without it, as in a State of an earlier version, it is unknown
	// whether the namespace that the main process is in was made by itself.
	Mounts *MountNamespace `json:"mounts,omitempty"`
}

// MountNamespace names a mount namespace for as long as it exists.
type MountNamespace struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`

	// ID is never used again, as an inode is. 0 before Linux 6.11 (NS_GET_MNTNS_ID, ioctl_ns(2)).
	ID uint64 `json:"id,omitempty"`
}

// Output is where a task's stdout and stderr go.
type Output struct {
	// Collector is who moves the output to the log files.
	Collector Collector `json:"collector"`

	// AllocDir is the allocation's directory: the files are <AllocDir>/alloc/logs/<Task>.stdout.N
	// (and .stderr.N). It is empty with CollectorNone.
	AllocDir    string `json:"alloc_dir,omitempty"`
	MaxFiles    int    `json:"max_files,omitempty"`
	MaxFileSize int64  `json:"max_file_size,omitempty"` // bytes

	// StderrFrom is where stderr ended before the start: what is before is of earlier runs.
	StderrFrom LogPlace `json:"stderr_from,omitzero"`

	// FIFOs are the inodes of the FIFOs stdout and stderr in the task's directory.
	// Used by CollectorDriver.
	FIFOs [2]Inode `json:"fifos,omitzero"`

	// Stdout and Stderr are the FIFOs of Nomad's logmon, or os.DevNull. Used by CollectorNomad.
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
}

// LogPlace is one in the log files of a stream: in the file of this number, after so many bytes.
type LogPlace struct {
	File   int   `json:"file"`
	Offset int64 `json:"offset"`
}

// Collector names who collects a task's output.
type Collector string

// The collectors.
const (
	CollectorDriver Collector = "driver" // package collector
	CollectorNomad  Collector = "nomad"  // Nomad's logmon
	CollectorNone   Collector = "none"   // not collected: the job has logs { disabled = true }
)

// ErrNoState is returned for a task of which nothing is on disk.
var ErrNoState = errors.New("no state of this task on disk")

// ErrBadState is returned where the file is there but is not a State: truncated,
// or written by a newer version.
var ErrBadState = errors.New("state of this task is unreadable")

// DefaultDir is where root's stores are, if the operator names no other directory. It goes with the last store.
const DefaultDir = "/run/outrider"

// Store is the directory in which one supervisor keeps the states of its tasks:
// <state_dir>/<plugin>/<node id>. Everything in it belongs to its owner alone
// (mode 0700), since environments hold secrets.
type Store struct{ Dir string }

// Socket is the path of the supervisor's listening socket.
func (s Store) Socket() string { return filepath.Join(s.Dir, "supervisor.sock") }

// Log is the path of the supervisor's log.
func (s Store) Log() string { return filepath.Join(s.Dir, "supervisor.log") }

// TaskDir is where the files of one task are: task.json, record, and the FIFOs
// stdout and stderr. The name is a hash since an id has slashes and no length limit.
func (s Store) TaskDir(id string) string {
	// not a cryptographic hash: that package's start-up would be part of every launch
	sum := fnv.New128a()
	sum.Write([]byte(id))
	return filepath.Join(s.Dir, "tasks", hex.EncodeToString(sum.Sum(nil)))
}

// FIFO is the path of a task's stdout or stderr, as stream selects.
func (s Store) FIFO(id, stream string) string { return filepath.Join(s.TaskDir(id), stream) }

// Save writes a state by atomic rename, and makes the directory if need be.
func (s Store) Save(st *State) error {
	if err := os.MkdirAll(s.TaskDir(st.ID), 0o700); err != nil {
		return err
	}
	st.Version = StateVersion
	return writeJSON(filepath.Join(s.TaskDir(st.ID), "task.json"), st)
}

// Load reads a task's state: ErrNoState where there is none, ErrBadState where
// it can't be read.
func (s Store) Load(id string) (*State, error) { return loadState(s.TaskDir(id)) }

// unclaimed is the name of the mark of a run that no agent knows of.
const unclaimed = "unclaimed"

// MarkUnclaimed notes that no agent knows of a task yet: one that is killed now will
// not ask for it by its id. It is called after Save, before the program runs.
func (s Store) MarkUnclaimed(id string) error {
	return os.WriteFile(filepath.Join(s.TaskDir(id), unclaimed), nil, 0o600)
}

// Claim notes that an agent knows of a task, for as long as anything of the task is
// there. It is no error where one has known already, or where nothing is on disk.
func (s Store) Claim(id string) error {
	if !s.Unclaimed(id) { // on a disk that can't be written to, too
		return nil
	}
	if err := os.Remove(filepath.Join(s.TaskDir(id), unclaimed)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Unclaimed reports whether there is a task that no agent knows of.
func (s Store) Unclaimed(id string) bool {
	_, err := os.Lstat(filepath.Join(s.TaskDir(id), unclaimed))
	return err == nil
}

// Rename gives a task another id, on disk and in st. Where it is killed in the middle,
// the next List finishes it. On an error the task has the id that it had.
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

// place puts a task's directory where that of its id belongs.
func (s Store) place(dir, id string) error {
	err := os.Rename(dir, s.TaskDir(id))
	if errors.Is(err, fs.ErrNotExist) { // another List was quicker
		_, err = os.Lstat(s.TaskDir(id))
	}
	return err
}

// List returns the states of all tasks, and apart from them the directories
// whose state can't be read. It finishes what a killed Rename has left.
func (s Store) List() (states []*State, unreadable []string, err error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, "tasks"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		dir := filepath.Join(s.Dir, "tasks", e.Name())
		st, err := loadState(dir)
		if err == nil && s.TaskDir(st.ID) != dir {
			err = s.place(dir, st.ID)
		}
		if err == nil {
			states = append(states, st)
		} else {
			unreadable = append(unreadable, dir)
		}
	}
	return states, unreadable, nil
}

// Remove deletes all that is on disk of a task. It is no error if nothing is.
func (s Store) Remove(id string) error { return os.RemoveAll(s.TaskDir(id)) }

// Retired is the directory of the records of destroyed tasks.
func (s Store) Retired() string { return filepath.Join(s.Dir, "retired") }

// Retire deletes all that is on disk of a task except its record, so that LoadExit still
// returns how it ended. It returns the record's new path, empty where there is none.
func (s Store) Retire(id string) (path string, err error) {
	path = s.retired(id)
	err = os.Rename(s.Record(id), path)
	if errors.Is(err, fs.ErrNotExist) {
		_ = os.Mkdir(s.Retired(), 0o700)
		err = os.Rename(s.Record(id), path)
	}
	if err != nil { // the exit is kept if it can be
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
		return nil, fmt.Errorf("%w: %w", ErrBadState, err)
	case st.Version > StateVersion || st.ID == "":
		return nil, fmt.Errorf("%w: version %d", ErrBadState, st.Version)
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
	// no fsync: what it describes does not outlive the kernel that runs it
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
