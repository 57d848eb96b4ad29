// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// column is an implementation of ZFS under test, with a pool.
type column struct {
	*engine.Engine
	kind string // zfs or zfs-fuse
	pool zfsfuse.Pool
	dirs string // directory with the mount points
}

// poolsVar names pools to test on, as "kind=program=root", separated by spaces. By default, zfs-fuse makes a pool.
const poolsVar = "DATASET_POOLS"

// eachColumn runs a test on each implementation of ZFS.
func eachColumn(t *testing.T, run func(t *testing.T, c column)) {
	t.Helper()
	testsupport.NeedRoot(t)
	for kind, open := range columns() {
		t.Run(kind, func(t *testing.T) { run(t, open(t)) })
	}
}

// columns returns a constructor for each column, by kind.
func columns() map[string]func(t testing.TB) column {
	all := map[string]func(t testing.TB) column{}
	for _, text := range strings.Fields(os.Getenv(poolsVar)) {
		kind, rest, _ := strings.Cut(text, "=")
		program, root, _ := strings.Cut(rest, "=")
		all[kind] = func(t testing.TB) column {
			return newColumn(t, kind, zfsfuse.Pool{Program: program, Root: root})
		}
	}
	if len(all) == 0 {
		all["zfs-fuse"] = func(t testing.TB) column { return newColumn(t, "zfs-fuse", zfsfusetest.New(t)) }
	}
	return all
}

func newColumn(t testing.TB, kind string, pool zfsfuse.Pool) column {
	t.Helper()
	e := engine.Open(pool.Program, pool.Root)
	dirs, err := filepath.EvalSymlinks(t.TempDir())
	must.NoError(t, err)
	e.Locks = filepath.Join(dirs, "locks")
	return column{e, kind, pool, dirs}
}

var names atomic.Int64

// name returns an unused name.
func (c column) name() string { return fmt.Sprintf("default/v%d-%d", os.Getpid(), names.Add(1)) }

// dir returns the directory where the tests mount a dataset.
func (c column) dir(name string) string { return filepath.Join(c.dirs, filepath.Base(name)) }

// create makes a dataset, which is destroyed at the end of the test.
func (c column) create(t testing.TB, name string, limits engine.Limits) (path string) {
	t.Helper()
	c.cleanUp(t, name)
	path, err := c.Create(t.Context(), name, engine.Spec{Limits: limits, Tags: engine.Tags{engine.Kind: "volume"},
		Dir: c.dir(name)})
	must.NoError(t, err)
	return path
}

// cleanUp destroys a dataset at the end of the test.
func (c column) cleanUp(t testing.TB, name string) {
	t.Cleanup(func() { must.NoError(t, c.Destroy(context.Background(), name)) })
}

// mount mounts a dataset at its directory, unless it is mounted there, and returns the directory.
func (c column) mount(t testing.TB, name string) (path string) {
	t.Helper()
	path, err := c.Mount(t.Context(), name, c.dir(name))
	must.NoError(t, err)
	return path
}

// list returns the names of all datasets.
func (c column) list(t testing.TB) (all []string) {
	t.Helper()
	datasets, err := c.List(t.Context())
	must.NoError(t, err)
	for _, d := range datasets {
		all = append(all, d.Name)
	}
	return all
}

// trash returns the name of the only dataset in the trash.
func (c column) trash(t testing.TB) string {
	t.Helper()
	all := slices.DeleteFunc(c.list(t), func(name string) bool { return !engine.InTrash(name) })
	must.Len(t, 1, all)
	return all[0]
}

func (c column) snapshots(t testing.TB, name string) (all []string) {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), c.pool.Program, "list", "-H", "-r", "-d", "1", "-t", "snapshot", "-o",
		"name", c.pool.Root+"/"+name).Output()
	must.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		_, snapshot, _ := strings.Cut(strings.TrimSpace(line), "@")
		all = append(all, snapshot)
	}
	return all
}

func write(t testing.TB, path, file, content string) {
	t.Helper()
	must.NoError(t, os.WriteFile(filepath.Join(path, file), []byte(content), 0o600))
}

func read(t testing.TB, path, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path, file))
	must.NoError(t, err)
	return string(content)
}

// fill writes random bytes until their number reaches the limit in most, or until an error. It syncs after each MiB.
func fill(t testing.TB, path string, most int64) (written int64, err error) {
	t.Helper()
	f, err := os.Create(filepath.Join(path, "filling"))
	must.NoError(t, err)
	defer f.Close()
	block := make([]byte, 128<<10)
	_, err = rand.Read(block)
	must.NoError(t, err)
	for i := uint64(0); written < most; i++ {
		binary.LittleEndian.PutUint64(block, i) // every block is different
		n, err := f.Write(block)
		if err == nil && i%8 == 0 {
			err = f.Sync()
		}
		if err != nil {
			return written, err
		}
		written += int64(n)
	}
	return written, f.Sync()
}

// soon waits until ok returns true for the dataset, because ZFS updates the usage numbers with a delay.
func (c column) soon(t testing.TB, name string, ok func(d engine.Dataset) bool) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		d, err := c.Get(t.Context(), name)
		if err == nil && !ok(d) {
			syscall.Sync()
			must.NoError(t, c.Tag(t.Context(), name, nil)) // makes ZFS commit a transaction group now
			err = fmt.Errorf("it is still %+v", d)
		}
		return err
	})
}

func isFull(err error) bool { return errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.ENOSPC) }
