// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// record is what is known of a btrfs dataset. It is beside its subvolume, since extended
// attributes of one that is full can't be set, and it is JSON as the target of a symbolic link:
// that is metadata alone, so it is written whole or not at all even if the machine crashes,
// and also where the pool has no space left for a file's data.
//
// A subvolume without a record is foreign. A record without its subvolume is left over, except
// where To has the subvolume.
type record struct {
	Subvolume uint64 `json:"subvolume"`          // its id
	Key       uint64 `json:"key"`                // of its snapshots' directory and qgroup; the id of its first subvolume
	Grouped   bool   `json:"grouped,omitempty"`  // whether the qgroup of the key is complete
	Replaced  bool   `json:"replaced,omitempty"` // another subvolume takes its place now, so its id may be wrong
	To        string `json:"to,omitempty"`       // where it is being moved to; its own name afterwards

	Created time.Time `json:"created"`
	Limits  Limits    `json:"limits"`
	Tags    Tags      `json:"tags,omitempty"`
}

const (
	recordSuffix = ".json"
	tmpSuffix    = ".tmp"
	snapshotsDir = ".snapshots"
)

// component is a part of a name. It can't begin with a dot: such files are this package's.
var component = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,199}$`)

// ownDirs are the directories of the root whose names begin with a dot and that have datasets.
var ownDirs = []string{slotsDir, trashDir, newDir, receivedDir}

// checkName returns an error unless a name can be that of a dataset.
func checkName(name string) error {
	parts := strings.Split(name, "/")
	last := len(parts) - 1
	if len(parts) > 2 || !component.MatchString(parts[last]) || strings.HasSuffix(name, recordSuffix) ||
		last == 1 && !component.MatchString(parts[0]) && !slices.Contains(ownDirs, parts[0]) {
		return fmt.Errorf("%q can't be the name of a dataset", name)
	}
	return nil
}

// load returns the record of a dataset. ErrNotFound, ErrForeign.
func (b *btrfs) load(name string) (*record, error) {
	info, err := os.Lstat(b.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("dataset %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to look at dataset %s: %w", name, err)
	}
	r, err := b.read(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !isSubvolume(info) {
		return nil, fmt.Errorf("%s is something else, %w", b.path(name), ErrForeign)
	}
	if err == nil && r.Replaced {
		now, err := subvolume(b.path(name))
		if err != nil {
			return nil, err
		}
		r.Subvolume, r.Replaced = now.id, false
	}
	return r, err
}

// read returns a record, also of a dataset that is not there.
func (b *btrfs) read(name string) (*record, error) {
	text, err := os.Readlink(b.path(name) + recordSuffix)
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("the record %s%s is damaged (%w): remove it and the subvolume beside it, or write it anew",
			b.path(name), recordSuffix, err)
	}
	return r, nil
}

// save writes a record whole or not at all.
func (b *btrfs) save(name string, r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := b.path(name) + recordSuffix
	if err := remove(path + tmpSuffix); err != nil {
		return err
	}
	if err := unix.Symlink(string(text), path+tmpSuffix); err != nil { // os.Symlink's error has the text in it
		return &os.PathError{Op: "write the record", Path: path, Err: err}
	}
	return os.Rename(path+tmpSuffix, path)
}

// vacant returns an error if there is something at a name, and removes a record that was left
// over there.
func (b *btrfs) vacant(name string) error {
	_, err := b.load(name)
	if errors.Is(err, ErrNotFound) {
		return b.failed("make", name, b.forget(name))
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("dataset %s: %w", name, ErrExists)
}

// forget removes the record of a dataset that is not there. If it had snapshots, as one that
// was deleted by hand, a sweep deletes them.
func (b *btrfs) forget(name string) error {
	if r, err := b.read(name); err == nil && exists(b.snapshotPath(r, "")) {
		if err := b.makeDir(newDir); err != nil {
			return err
		}
		if err := b.save(goneName(r.Subvolume), r); err != nil {
			return err
		}
	}
	return also(remove(b.path(name)+recordSuffix), remove(b.path(name)+recordSuffix+tmpSuffix))
}

// move renames a dataset: the subvolume, then the record, which says so before. From the
// first rename on, any process may do the second one (settle).
func (b *btrfs) move(from, to string, r *record) error {
	if err := b.makeDir(filepath.Dir(to)); err != nil {
		return err
	}
	r.To = to
	if err := b.save(from, r); err != nil {
		return err
	}
	if err := renameNew(b.path(from), b.path(to)); err != nil {
		return err
	}
	b.settle(from)
	_, err := b.read(to)
	return err
}

// settle brings the record at a name to where its subvolume was moved, and returns that name.
func (b *btrfs) settle(name string) string {
	r, err := b.read(name)
	if err != nil || r.To == "" || r.To == name {
		return name
	}
	if exists(b.path(name)) {
		return name
	}
	if s, err := subvolume(b.path(r.To)); err != nil || s.id != r.Subvolume {
		return name
	}
	// if it fails, another process was faster
	_ = renameNew(b.path(name)+recordSuffix, b.path(r.To)+recordSuffix)
	return r.To
}

// makeDir makes a directory of the root. Tasks find their datasets in those of namespaces and
// slots, and nothing in the others.
func (b *btrfs) makeDir(dir string) error {
	mode := fs.FileMode(0o711)
	if strings.HasPrefix(dir, ".") && dir != slotsDir {
		mode = 0o700
	}
	f, err := owndir.Make(b.path(dir), mode)
	if err != nil {
		return err
	}
	return f.Close()
}

func renameNew(from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// remove does not ask a read-only file system to remove what is not there, which would be an error.
func remove(path string) error {
	if !exists(path) {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
