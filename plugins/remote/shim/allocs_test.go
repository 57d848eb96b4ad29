// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// makes makes the directories of a task.
func (a allocs) makes(alloc, task string, uid int) (string, error) {
	return a.make(alloc, task, Owner{AllocID: alloc, NodeID: "node", NodeDir: "/of/the/node/" + alloc}, uid, uid)
}

// mode is the mode of a file, with its owner.
func mode(t *testing.T, path string) (fs.FileMode, int) {
	t.Helper()
	info, err := os.Lstat(path)
	must.NoError(t, err)
	return info.Mode().Perm(), int(info.Sys().(*syscall.Stat_t).Uid)
}

func TestAllocs_HaveTheDirectoriesOfANode(t *testing.T) {
	testsupport.NeedRoot(t)
	a := allocs{t.TempDir()}
	dir, err := a.makes("alloc-1", "web", nobody)
	must.NoError(t, err)
	must.Eq(t, filepath.Join(a.dir, "alloc-1"), dir)
	for path, want := range map[string]fs.FileMode{
		".": 0o711, "alloc": 0o777, "alloc/data": 0o777, "alloc/logs": 0o777, "alloc/tmp": 0o777,
		"web": 0o700, "web/local": 0o700, "web/secrets": 0o700, "web/tmp": 0o700, ownerFile: 0o600,
	} {
		got, uid := mode(t, filepath.Join(dir, path))
		must.Eq(t, want, got, must.Sprint(path))
		must.Eq(t, strings.HasPrefix(path, "web"), uid != 0, must.Sprintf("%s belongs to %d", path, uid))
	}
	found, err := a.list("node")
	must.NoError(t, err)
	must.Eq(t, map[string]string{"alloc-1": "/of/the/node/alloc-1"}, found)
	found, err = a.list("another")
	must.NoError(t, err)
	must.MapEmpty(t, found)
	must.NoError(t, a.remove("alloc-1"))
	_, err = os.Lstat(dir)
	must.ErrorIs(t, err, fs.ErrNotExist)
	must.NoError(t, a.remove("alloc-1"))
}

// A task may put a symbolic link where its directory has one. Root changes nothing through it.
func TestAllocs_LeaveWhatATaskHasChanged(t *testing.T) {
	testsupport.NeedRoot(t)
	a := allocs{t.TempDir()}
	dir, err := a.makes("alloc-1", "web", nobody)
	must.NoError(t, err)
	other := filepath.Join(t.TempDir(), "roots")
	must.NoError(t, os.Mkdir(other, 0o755))
	local := filepath.Join(dir, "web", "local")
	must.NoError(t, os.Remove(local))
	must.NoError(t, os.Symlink(other, local))
	_, err = a.makes("alloc-1", "web", nobody)
	must.NoError(t, err)
	got, uid := mode(t, other)
	must.Eq(t, fs.FileMode(0o755), got)
	must.Eq(t, 0, uid)
	must.NoError(t, a.remove("alloc-1"))
	_, err = os.Lstat(other)
	must.NoError(t, err)
}

func TestAllocs_AreNowhereElse(t *testing.T) {
	a := allocs{t.TempDir()}
	for _, c := range [][2]string{
		{"", "web"}, {"..", "web"}, {".", "web"}, {"../x", "web"}, {"/etc", "web"}, {"a\x00b", "web"},
		{"alloc-1", ""}, {"alloc-1", ".."}, {"alloc-1", "a/b"}, {"alloc-1", "alloc"},
		{"alloc-1", ownerFile}, {"alloc-1", ".x"},
	} {
		_, err := a.makes(c[0], c[1], os.Geteuid())
		must.Error(t, err, must.Sprintf("of allocation %q, task %q", c[0], c[1]))
	}
	for _, id := range []string{"", ".", "..", "../x", "/etc"} {
		must.Error(t, a.remove(id), must.Sprint(id))
	}
}

// Nomad starts the tasks of a group at the same time.
func TestAllocs_AreMadeByManyAtOnce(t *testing.T) {
	a := allocs{t.TempDir()}
	errs := make(chan error)
	const tasks = 20
	for i := range tasks {
		go func() {
			_, err := a.makes("alloc-1", fmt.Sprintf("task-%d", i%5), os.Geteuid())
			errs <- err
		}()
	}
	for range tasks {
		must.NoError(t, <-errs)
	}
	entries, err := os.ReadDir(filepath.Join(a.dir, "alloc-1"))
	must.NoError(t, err)
	must.Len(t, 5+2, entries) // and the shared directory, and its owner
}

func TestList_OfAllocationsNeedsNoRecordsOfRuns(t *testing.T) {
	a := allocs{t.TempDir()}
	must.NoError(t, os.Mkdir(filepath.Join(a.dir, "alloc-1"), 0o711))
	must.NoError(t, save(filepath.Join(a.dir, "alloc-1", ownerFile), Owner{NodeID: "node", NodeDir: "/nomad/alloc-1"}))
	h := &host{allocs: a, runs: newRuns("/proc")} // where nothing can be made
	reply, err := h.list(t.Context(), &ListRequest{NodeID: "node"})
	must.NoError(t, err)
	must.Eq(t, map[string]string{"alloc-1": "/nomad/alloc-1"}, reply.Allocs)
	_, err = h.list(t.Context(), &ListRequest{})
	must.Error(t, err)
}
