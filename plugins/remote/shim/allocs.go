// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/client/allocdir"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// allocs are the directories of allocations on the host, in the places that they have on a node
// (Nomad's client/allocdir). The directory above them, each allocation's, and ownerFile in it belong
// to this user alone; what is below is a task's.
type allocs struct{ dir string }

// AllocDir is the directory of an allocation on a host whose directory is dir.
func AllocDir(dir, allocID string) string { return filepath.Join(dir, "allocs", allocID) }

// ownerFile has the Owner that an allocation's directory was made for, as JSON.
const ownerFile = "owner.json"

// path is the directory of an allocation.
func (a allocs) path(id string) (string, error) {
	if !isName(id) || strings.Contains(id, ".") {
		return "", fmt.Errorf("%q is no id of an allocation", id)
	}
	return filepath.Join(a.dir, id), nil
}

// isName is whether a text from another machine is a name in a directory that hides nothing.
func isName(text string) bool {
	return text != "" && !strings.HasPrefix(text, ".") && !strings.ContainsAny(text, "/\x00")
}

// make makes the directories of a task that are missing, for this user, and returns that of its allocation. The owner's
// node removes it.
func (a allocs) make(id, task string, owner Owner, uid, gid int) (string, error) {
	dir, err := a.path(id)
	if err != nil {
		return "", err
	}
	if !isName(task) || task == allocdir.SharedAllocName || task == ownerFile {
		return "", fmt.Errorf("%q can't be the name of a task on this host", task)
	}
	f, err := owndir.Make(dir, 0o711)
	if err != nil {
		return "", fmt.Errorf("failed to make the allocation's directory: %w", err)
	}
	f.Close()
	if err := save(filepath.Join(dir, ownerFile), owner); err != nil {
		return "", err
	}
	// every task of the group may write there
	shared := []string{allocdir.SharedDataDir, allocdir.LogDirName, allocdir.TmpDirName}
	if err := makeTree(dir, allocdir.SharedAllocName, shared, os.Geteuid(), os.Getegid(), 0o777); err != nil {
		return "", err
	}
	own := []string{allocdir.TaskLocal, allocdir.TaskSecrets, allocdir.TmpDirName}
	return dir, makeTree(dir, task, own, uid, gid, 0o700)
}

// makeTree makes a directory with others in it, unless it exists. It appears complete, so nothing is
// ever done to a directory that a task may have changed.
func makeTree(parent, name string, below []string, uid, gid int, mode fs.FileMode) error {
	dir := filepath.Join(parent, name)
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	made, err := os.MkdirTemp(parent, ".new-")
	if err != nil {
		return err
	}
	for _, sub := range append(below, ".") {
		path := filepath.Join(made, sub)
		if sub != "." {
			err = os.Mkdir(path, mode)
		}
		if err == nil {
			err = os.Chmod(path, mode) // whatever the umask
		}
		if err == nil {
			err = os.Lchown(path, uid, gid)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = os.Rename(made, dir)
	}
	if err != nil {
		_ = os.RemoveAll(made)
	}
	if _, there := os.Lstat(dir); there == nil { // another start of the group was faster
		return nil
	}
	return err
}

// copied is the file in an allocation's directory with how new the files are that were copied for a task. No name of a
// task begins with a dot.
func (a allocs) copied(id, task string) (file string, err error) {
	dir, err := a.path(id)
	if err == nil && !isName(task) {
		err = fmt.Errorf("%q is no name of a task", task)
	}
	return filepath.Join(dir, ".copied-"+task), err
}

// list returns a node's allocations, by id, with their directories there.
func (a allocs) list(nodeID string) (found map[string]string, err error) {
	found = map[string]string{}
	entries, err := os.ReadDir(a.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	for _, e := range entries {
		var owner Owner
		err := load(filepath.Join(a.dir, e.Name(), ownerFile), &owner)
		if err == nil && owner.NodeID == nodeID {
			found[e.Name()] = owner.NodeDir
		}
	}
	return found, err
}

// remove removes an allocation's directory. Its tasks are gone.
func (a allocs) remove(id string) error {
	dir, err := a.path(id)
	if err != nil {
		return err
	}
	return owndir.RemoveAll(dir)
}
