// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// Moment is a time of a node, by a clock that nobody sets.
type Moment struct {
	BootID string `json:"boot_id"` // /proc/sys/kernel/random/boot_id
	Nanos  int64  `json:"nanos"`   // CLOCK_BOOTTIME
}

// Now is this moment.
func Now() (Moment, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Moment{}, err
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return Moment{}, err
	}
	return Moment{BootID: strings.TrimSpace(string(text)), Nanos: ts.Nano()}, nil
}

// moments remember, for each node, when the latest connection was made by which a task was started. A start that
// comes late, by a connection that the node has given up, would end the run that the node has started since.
type moments struct{ dir string }

// check remembers the moment of a connection, or returns an error if a later one of the same node has been used.
func (m moments) check(nodeID string, at Moment) error {
	if !isName(nodeID) {
		return fmt.Errorf("%q is no id of a node", nodeID)
	}
	dir, err := owndir.Make(m.dir, 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	path := filepath.Join(dir.Name(), nodeID)
	var latest Moment
	text, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(text, &latest) == nil && latest.BootID == at.BootID {
		if at.Nanos < latest.Nanos {
			return errors.New("the node has connected anew since it asked for this start")
		}
		if at == latest {
			return nil
		}
	}
	if text, err = json.Marshal(at); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir.Name(), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
