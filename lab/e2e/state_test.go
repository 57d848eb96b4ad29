// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// state is what the tests need of a supervisor's task.json.
type state struct {
	ID       string `json:"id"`
	Identity struct {
		PID int `json:"pid"`
	} `json:"identity"`
}

// stateOf finds the state of the running task of an allocation.
func (n *node) stateOf(t testing.TB, allocID string) (dir string, st state) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		for _, dir = range n.taskDirs() {
			b, err := os.ReadFile(filepath.Join(dir, "task.json"))
			if err != nil {
				continue
			}
			st = state{}
			if json.Unmarshal(b, &st) == nil && strings.HasPrefix(st.ID, allocID+"/") && st.Identity.PID != 0 {
				return nil
			}
		}
		return errors.New("no task.json of allocation " + allocID)
	})
	return dir, st
}

// exitRecorded says whether a task's record has its exit, of which the length is
// at byte 8.
func exitRecorded(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "record"))
	if err == nil && (len(b) < 12 || binary.LittleEndian.Uint32(b[8:]) == 0) {
		err = errors.New("no exit in the record")
	}
	return err
}

// editState changes fields of a task.json; nil removes one.
func editState(t testing.TB, dir string, edit func(map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, "task.json")
	b, err := os.ReadFile(path)
	must.NoError(t, err)
	m := map[string]any{}
	must.NoError(t, json.Unmarshal(b, &m))
	edit(m)
	if b, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	must.NoError(t, os.WriteFile(path, b, 0o600))
}
