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
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func (a allocs) makes(alloc, task string, uid int) (string, error) {
	return a.make(alloc, task, uid, uid)
}

// mode returns the mode and the owner of a file.
func mode(t *testing.T, path string) (fs.FileMode, int) {
	t.Helper()
	info, err := os.Lstat(path)
	must.NoError(t, err)
	return info.Mode().Perm(), int(info.Sys().(*syscall.Stat_t).Uid)
}

func TestAllocs_HaveTheSameDirectoriesAsOnANode(t *testing.T) {
	testsupport.NeedRoot(t)
	a := allocs{t.TempDir()}
	dir, err := a.makes("alloc-1", "web", nobody)
	must.NoError(t, err)
	must.Eq(t, filepath.Join(a.dir, "alloc-1"), dir)
	for path, want := range map[string]fs.FileMode{
		".": 0o711, "alloc": 0o777, "alloc/data": 0o777, "alloc/logs": 0o777, "alloc/tmp": 0o777,
		"web": 0o700, "web/local": 0o700, "web/secrets": 0o700, "web/tmp": 0o700,
	} {
		got, uid := mode(t, filepath.Join(dir, path))
		must.Eq(t, want, got, must.Sprint(path))
		must.Eq(t, strings.HasPrefix(path, "web"), uid != 0, must.Sprintf("%s belongs to %d", path, uid))
	}
}

// A task may replace a directory by a symbolic link. As root, the plugin must change nothing through this link.
func TestAllocs_FollowNoLinksOfATask(t *testing.T) {
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
	paths, err := a.retire(nil, time.Now().Add(time.Hour))
	must.NoError(t, err)
	must.SliceLen(t, 1, paths)
	must.NoError(t, owndir.RemoveAll(paths[0]))
	_, err = os.Lstat(other)
	must.NoError(t, err)
}

func TestAllocs_RefuseInvalidNames(t *testing.T) {
	a := allocs{t.TempDir()}
	for _, c := range [][2]string{
		{"", "web"}, {"..", "web"}, {".", "web"}, {"../x", "web"}, {"/etc", "web"}, {"a\x00b", "web"},
		{"alloc-1", ""}, {"alloc-1", ".."}, {"alloc-1", "a/b"}, {"alloc-1", "alloc"},
		{"alloc-1", ".x"},
	} {
		_, err := a.makes(c[0], c[1], os.Geteuid())
		must.Error(t, err, must.Sprintf("of allocation %q, task %q", c[0], c[1]))
	}
}

// Nomad starts the tasks of a group at the same time.
func TestAllocs_AreMadeConcurrently(t *testing.T) {
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
	must.Len(t, 5+1, entries) // a directory for each task name, and the shared one
}

func TestAllocs_AreRemovedSomeTimeAfterTheirLastRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "box[1]")
	h := &host{allocs: allocs{filepath.Join(dir, "allocs")}, runs: newRuns(dir)}
	side{h.runs, t, "node"}.start("used")
	past := time.Now().Add(-2 * keepTime)
	for _, id := range []string{"used", "new", "old", "ended-now", removed + "half"} {
		must.NoError(t, os.MkdirAll(filepath.Join(h.allocs.dir, id, "alloc"), 0o711))
		if id != "new" {
			must.NoError(t, os.Chtimes(filepath.Join(h.allocs.dir, id), past, past))
		}
	}
	h.allocs.used("ended-now")
	left := func() (names []string) {
		entries, err := os.ReadDir(h.allocs.dir)
		must.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}

	broken := h.runs.recordOf("x-y")
	must.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
	must.ErrorContains(t, h.removeAllocs(), "failed to read the record "+broken)
	must.SliceLen(t, 5, left())
	must.NoError(t, os.Remove(broken))
	must.NoError(t, h.removeAllocs())
	must.Eq(t, []string{"ended-now", "new", "used"}, left())
}

func TestAllocs_LogFilesAreNumberedAfterTheNodesFiles(t *testing.T) {
	for name, row := range map[string]struct {
		host []string // the content of the files on the host
		has  LogsPart // the newest file of the node
		want string   // the numbers of the files on the host afterwards
	}{
		"no output":                    {want: "[]"},
		"all on the host":              {host: []string{"12345"}, has: LogsPart{Number: 0, Size: 5}, want: "[0]"},
		"more on the host":             {host: []string{"12345", ""}, has: LogsPart{Number: 0, Size: 5}, want: "[0 1]"},
		"one file of another run":      {has: LogsPart{Number: 0, Size: 5}, want: "[1]"},
		"several files of another run": {has: LogsPart{Number: 2, Size: 5}, want: "[3]"},
		"more on the node":             {host: []string{"1234"}, has: LogsPart{Number: 0, Size: 5}, want: "[0 1]"},
	} {
		t.Run(name, func(t *testing.T) {
			a := allocs{t.TempDir()}
			logs := filepath.Join(a.dir, "alloc-1", "alloc", "logs")
			for i, content := range row.host {
				must.NoError(t, os.MkdirAll(logs, 0o755))
				must.NoError(t, os.WriteFile(filepath.Join(logs, fmt.Sprintf("web.stderr.%d", i)), []byte(content), 0o600))
			}
			a.resume("alloc-1/web/1", LogsRequest{Stderr: row.has})
			files, err := filepath.Glob(filepath.Join(logs, "*"))
			must.NoError(t, err)
			numbers := []string{}
			for _, file := range files {
				number, ofStream := strings.CutPrefix(filepath.Base(file), "web.stderr.")
				must.True(t, ofStream, must.Sprint(file))
				numbers = append(numbers, number)
			}
			must.Eq(t, row.want, fmt.Sprint(numbers))
		})
	}
}
