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

// record is what is remembered of a volume. The operator's file may change or be broken: the
// volume is where it was made.
type record struct {
	policy.Request
	Class    string
	Program  string
	Root     string
	OnDelete string
	TrashTTL time.Duration

	Unfinished bool `json:",omitempty"` // it was never answered, so nobody has used the volume
}

// newRecord is that of a volume that a class gives.
func newRecord(r policy.Request, f *policy.File, v *policy.Volume) *record {
	c := f.Classes[v.Class]
	return &record{Request: r, Class: v.Class, Program: f.ZFS, Root: c.Root, OnDelete: c.OnDelete,
		TrashTTL: c.TrashTTL.Duration(), Unfinished: true}
}

func (r *record) dataset() string { return engine.VolumeName(r.Namespace, r.ID) }

// identity are the tags by which a dataset is that of this volume.
func (r *record) identity() engine.Tags {
	return engine.Tags{engine.Kind: "volume", engine.ID: r.ID, engine.Namespace: r.Namespace}
}

// engine is that of the volume. The program may have moved since.
func (r *record) engine(f *policy.File) *engine.Engine {
	program := r.Program
	if f != nil {
		program = f.ZFS
	}
	return engine.Open(program, r.Root)
}

// records are files in a directory that only root can change, replaced by rename. The caller holds the lock of the
// volume.
type records struct{ dir string }

const (
	recordsDir = ".outrider" // in Nomad's directory of volumes

	recordFile = ".json"
	tempFile   = ".tmp" // being written
)

func (r records) path(id, kind string) string { return filepath.Join(r.dir, id+kind) }

// trusted is who owns Nomad's directories: they can replace Nomad's plugins as well.
func (r records) trusted() []int {
	users := owndir.Nomad()
	if info, err := os.Stat(filepath.Dir(r.dir)); err == nil {
		users = append(users, int(info.Sys().(*syscall.Stat_t).Uid))
	}
	return users
}

// read returns nil if there is no record.
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
		return nil, fmt.Errorf("the record of the volume, %s, can't be read: %w", r.path(id, recordFile), err)
	}
	if rec.ID != id {
		return nil, fmt.Errorf("the record of the volume, %s, is that of %q", r.path(id, recordFile), rec.ID)
	}
	return &rec, nil
}

// save is done when the record is on the disk.
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

// remove forgets a volume.
func (r records) remove(id string) error {
	for _, kind := range []string{recordFile, tempFile} {
		if err := os.Remove(r.path(id, kind)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	dir, err := os.Open(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// ids are those of all records, and of what killed calls have left of some.
func (r records) ids() (ids []string) {
	entries, _ := os.ReadDir(r.dir)
	for _, e := range entries {
		if id, _, _ := strings.Cut(e.Name(), "."); policy.IsID(id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}
