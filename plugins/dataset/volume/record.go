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
	Backend  string `json:",omitempty"` // of volumes from before there was ZFS alone
	Program  string
	Root     string
	OnDelete string
	TrashTTL time.Duration
	Owner    policy.Owner

	unfinished bool // it was never answered, so nobody has used the volume
}

// newRecord is that of a volume that a class gives.
func newRecord(r policy.Request, f *policy.File, v *policy.Volume) *record {
	c := f.Classes[v.Class]
	return &record{Request: r, Class: v.Class, Program: f.ZFS, Root: c.Root, OnDelete: c.OnDelete,
		TrashTTL: c.TrashTTL.Duration(), Owner: v.Owner, unfinished: true}
}

func (r *record) dataset() string { return engine.VolumeName(r.Namespace, r.ID) }

// identity are the tags by which a dataset is that of this volume.
func (r *record) identity() engine.Tags {
	return engine.Tags{engine.Kind: "volume", engine.ID: r.ID, engine.Namespace: r.Namespace}
}

// engine is that of the volume. The program may have moved since.
func (r *record) engine(f *policy.File) (*engine.Engine, error) {
	if r.Backend == "btrfs" {
		return nil, fmt.Errorf("volume %s is on btrfs, which %w", r.ID, policy.ErrBtrfs)
	}
	program := r.Program
	if f != nil {
		program = f.ZFS
	}
	return engine.Open(program, r.Root)
}

// records are files in a directory that only root can change: <id>.new while a volume is
// being made, <id>.json from then on. The caller holds the lock of the volume.
type records struct{ dir string }

const (
	recordsDir = ".outrider" // in Nomad's directory of volumes

	newFile   = ".new"
	readyFile = ".json"
	tempFile  = ".tmp"
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
	for _, kind := range []string{readyFile, newFile} {
		data, err := os.ReadFile(r.path(id, kind))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		rec := record{unfinished: kind == newFile}
		if err := json.Unmarshal(data, &rec); err != nil {
			if kind == newFile { // killed while it was written, before anything was made
				return nil, r.remove(id)
			}
			return nil, fmt.Errorf("the record of the volume, %s, can't be read: %w", r.path(id, kind), err)
		}
		if rec.ID != id {
			return nil, fmt.Errorf("the record of the volume, %s, is that of %q", r.path(id, kind), rec.ID)
		}
		return &rec, nil
	}
	return nil, nil
}

// begin saves the record of a volume that is about to be made.
func (r records) begin(rec *record) error { return r.write(rec, newFile) }

// finish makes it that of a volume that can be used.
func (r records) finish(id string) error { return r.rename(id, newFile) }

// save saves the record of a volume that can be used.
func (r records) save(rec *record) error {
	if err := r.write(rec, tempFile); err != nil {
		return err
	}
	return r.rename(rec.ID, tempFile)
}

func (r records) rename(id, kind string) error {
	if err := os.Rename(r.path(id, kind), r.path(id, readyFile)); err != nil {
		return err
	}
	return r.sync()
}

func (r records) write(rec *record, kind string) error {
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	dir, err := owndir.Make(r.dir, 0o700, r.trusted()...)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := os.OpenFile(r.path(rec.ID, kind), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("failed to record the volume: %w", err)
	}
	return dir.Sync()
}

func (r records) sync() error {
	dir, err := os.Open(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// remove forgets a volume.
func (r records) remove(id string) error {
	for _, kind := range []string{readyFile, newFile, tempFile} {
		if err := os.Remove(r.path(id, kind)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return r.sync()
}

// unfinished are the ids of volumes that are being made, or whose making was killed.
func (r records) unfinished() (ids []string) {
	entries, _ := os.ReadDir(r.dir)
	for _, e := range entries {
		if id, found := strings.CutSuffix(e.Name(), newFile); found && policy.IsID(id) {
			ids = append(ids, id)
		}
	}
	return ids
}
