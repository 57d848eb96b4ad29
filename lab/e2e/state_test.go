// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
