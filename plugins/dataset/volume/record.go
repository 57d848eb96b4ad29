// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/owndir"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// record is the persistent state of a volume. It locates the volume even if the operator's file has
// changed or is invalid.
type record struct {
	policy.Request
	Class    string
	Program  string
	Root     string
	OnDelete string
	TrashTTL time.Duration

	Unfinished bool `json:",omitempty"` // the first create has not returned, so nobody has used the volume
}

// newRecord returns the record of a new volume.
func newRecord(r policy.Request, f *policy.File, v *policy.Volume) *record {
	c := f.Classes[v.Class]
	return &record{Request: r, Class: v.Class, Program: f.ZFS, Root: c.Root, OnDelete: c.OnDelete,
		TrashTTL: c.TrashTTL.Duration(), Unfinished: true}
}

func (r *record) dataset() string { return engine.VolumeName(r.Namespace, r.ID) }

// identity returns the tags that identify the volume's dataset.
func (r *record) identity() engine.Tags {
	return engine.Tags{engine.Kind: "volume", engine.ID: r.ID, engine.Namespace: r.Namespace}
}

// engine returns the engine of the volume. It uses the zfs program of the operator's file f, because the program may
// have moved since the record was written. If f is nil, it uses the recorded program.
func (r *record) engine(f *policy.File) *engine.Engine {
	program := r.Program
	if f != nil {
		program = f.ZFS
	}
	return engine.Open(program, r.Root)
}

// records is the directory of the records, which only root can change. The method save replaces a record by renaming a
// new file. Callers must hold the lock of the record's volume.
type records struct{ dir string }

const (
	recordsDir = ".outrider" // name in Nomad's directory of volumes
	recordFile = ".json"
	tempFile   = ".tmp" // extension of a record that is being written
)

func (r records) path(id, kind string) string { return filepath.Join(r.dir, id+kind) }

// trusted returns the users that may own the records. They are Nomad's users, who could replace the plugins anyway.
func (r records) trusted() []int {
	users := owndir.Nomad()
	if info, err := os.Stat(filepath.Dir(r.dir)); err == nil {
		users = append(users, int(info.Sys().(*syscall.Stat_t).Uid))
	}
	return users
}

// read returns the record of a volume, or nil if the volume has none.
func (r records) read(id string) (*record, error) {
	if err := owndir.Check(r.dir, r.trusted()...); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(r.path(id, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return nil, fmt.Errorf("failed to parse the volume's record %s: %w", r.path(id, recordFile), err)
	}
	if rec.ID != id {
		return nil, fmt.Errorf("the volume's record %s belongs to volume %q", r.path(id, recordFile), rec.ID)
	}
	return &rec, nil
}

// save writes the record and syncs it to the disk.
func (r records) save(rec *record) error {
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	dir, err := owndir.Make(r.dir, 0o700, r.trusted()...)
	if err != nil {
		return err
	}
	defer dir.Close()
	temp := r.path(rec.ID, tempFile)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("failed to record the volume: %w", err)
	}
	if err := os.Rename(temp, r.path(rec.ID, recordFile)); err != nil {
		return err
	}
	return dir.Sync()
}

// remove deletes the record of a volume.
func (r records) remove(id string) error {
	for _, kind := range []string{recordFile, tempFile} {
		if err := os.Remove(r.path(id, kind)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	dir, err := os.Open(r.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// ids returns the ids of all volumes with a record, or with a temporary file that a killed call has left.
func (r records) ids() (ids []string) {
	entries, _ := os.ReadDir(r.dir)
	for _, e := range entries {
		if id, _, _ := strings.Cut(e.Name(), "."); policy.IsID(id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}
