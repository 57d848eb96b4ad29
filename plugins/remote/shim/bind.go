// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// hostFile, in the state directory, is the machine that this is of. Several machines may see one directory: a home on
// NFS, or a volume of containers. Each would take what the others run for processes of an earlier boot, and a lock may
// hold on one machine only.
const hostFile = "host"

// machine is one system, over reboots, and one run of it.
type machine struct {
	ID   string `json:"machine_id,omitempty"` // machine-id(5), empty where there is none that lasts
	Name string `json:"hostname"`
	Run  string `json:"run,omitempty"` // the boot, and the pid namespace
}

func thisMachine() machine {
	var m machine
	if _, err := os.Lstat("/run/machine-id"); err != nil { // systemd made one for this boot
		id, _ := os.ReadFile("/etc/machine-id")
		m.ID = strings.TrimSpace(string(id))
	}
	m.Name, _ = os.Hostname()
	if pids, err := os.Readlink("/proc/self/ns/pid"); err == nil && task.BootID() != "" {
		m.Run = task.BootID() + " " + pids
	}
	return m
}

// is reports whether two are the same. The id alone does not tell, since copies of an image share it. The name may
// change while the system runs.
func (m machine) is(o machine) bool {
	return m.Run != "" && m.Run == o.Run || m.Name == o.Name && (m.ID == o.ID || m.ID == "" || o.ID == "")
}

func (m machine) String() string {
	if m.ID == "" {
		return fmt.Sprintf("%q", m.Name)
	}
	return fmt.Sprintf("%q (machine id %s)", m.Name, m.ID)
}

// bind makes the state directory this machine's if it is no other's. It is called before each use, since a person may
// give the directory to another machine.
func (s *Shim) bind() error {
	here, path := thisMachine(), filepath.Join(s.cfg.StateDir, hostFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.writeHost(here, os.Link); err == nil || errors.Is(err, fs.ErrExist) { // of several the first one counts
			b, err = os.ReadFile(path)
		}
	}
	if err != nil {
		return fmt.Errorf("the directory for tasks on the host can't be used: %w", err)
	}
	var of machine
	if err := json.Unmarshal(b, &of); err != nil || !here.is(of) {
		return fmt.Errorf("the directory %s on the host is that of another machine, %s, and this one is %s: set state_dir "+
			"to a directory that this machine alone uses, or, if it was renamed or installed anew and nothing of the other "+
			"one runs, remove %s", s.cfg.StateDir, of, here, path)
	}
	if of != here { // it may have another name after the next reboot, too
		if err := s.writeHost(here, os.Rename); err != nil { // a full disk is no reason to refuse
			s.cfg.Log("failed to note the name of this machine: %v", err)
		}
	}
	return nil
}

// writeHost makes the file, and has it put in its place.
func (s *Shim) writeHost(m machine, put func(from, to string) error) error {
	dir, err := owndir.Make(s.cfg.StateDir, 0o711)
	if err != nil {
		return err
	}
	dir.Close()
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	name := "." + hostFile + "." + rand.Text()
	defer os.Remove(filepath.Join(s.cfg.StateDir, name))
	if err := writeFile(s.cfg.StateDir, name, b, true); err != nil {
		return err
	}
	return put(filepath.Join(s.cfg.StateDir, name), filepath.Join(s.cfg.StateDir, hostFile))
}
