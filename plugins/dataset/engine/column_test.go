// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/simulate"
	"github.com/outrider-dev/outrider/plugins/dataset/simulate/simulatetest"
)

// differs is where backends differ; in all else they do the same.
type differs struct {
	keepsLater   bool // a rollback keeps later snapshots, and so needs no discard
	clonesAlone  bool // nothing holds what a clone was made of
	mounts       bool // a dataset has a mount point, and a new one after each Rename
	keepsChanges bool // a dataset that was changed since its snapshot can't be continued by a stream
}

var differences = map[string]differs{
	"btrfs":    {keepsLater: true, clonesAlone: true},
	"zfs":      {mounts: true, keepsChanges: true},
	"zfs-fuse": {mounts: true, keepsChanges: true},
}

// column is a backend on a pool.
type column struct {
	engine.Backend
	differs
	kind string
	pool simulate.Pool
	dirs string // where datasets are mounted
}

// poolsVar names pools to test instead of those in files: "kind=program=root", with spaces between.
const poolsVar = "DATASET_POOLS"

// eachColumn runs a test with each backend of a file system: "zfs" or "btrfs".
func eachColumn(t *testing.T, backend string, run func(t *testing.T, c column)) {
	t.Helper()
	testsupport.NeedRoot(t)
	for kind, open := range columns() {
		if strings.HasPrefix(kind, backend) {
			t.Run(kind, func(t *testing.T) { run(t, open(t)) })
		}
	}
}

// columns are the backends to test, by their kinds.
func columns() map[string]func(t testing.TB) column {
	all := map[string]func(t testing.TB) column{}
	for _, kind := range simulate.Kinds() {
		all[kind] = func(t testing.TB) column { return newColumn(t, kind, simulatetest.New(t, kind)) }
	}
	if given := strings.Fields(os.Getenv(poolsVar)); len(given) > 0 {
		clear(all)
		for _, text := range given {
			kind, rest, _ := strings.Cut(text, "=")
			program, root, _ := strings.Cut(rest, "=")
			backend, _, _ := strings.Cut(kind, "-")
			all[kind] = func(t testing.TB) column {
				return newColumn(t, kind, simulate.Pool{Backend: backend, Program: program, Root: root})
			}
		}
	}
	return all
}

func newColumn(t testing.TB, kind string, pool simulate.Pool) column {
	t.Helper()
	d, ok := differences[kind]
	must.True(t, ok, must.Sprint(kind))
	e, err := engine.Open(pool.Backend, pool.Program, pool.Root)
	must.NoError(t, err)
	dirs, err := filepath.EvalSymlinks(t.TempDir())
	must.NoError(t, err)
	return column{e.Backend, d, kind, pool, dirs}
}

var names atomic.Int64

// name returns one that no dataset has had.
func (c column) name() string { return fmt.Sprintf("default/v%d-%d", os.Getpid(), names.Add(1)) }

// dir is the mount point of a dataset.
func (c column) dir(name string) string { return filepath.Join(c.dirs, filepath.Base(name)) }

// create makes a dataset until the end of the test.
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

// mount mounts a dataset again.
func (c column) mount(t testing.TB, name string) (path string) {
	t.Helper()
	path, err := c.Mount(t.Context(), name, c.dir(name))
	must.NoError(t, err)
	return path
}

// receive receives a stream of a whole dataset.
func (c column) receive(t testing.TB, name string, stream []byte) {
	t.Helper()
	c.cleanUp(t, name)
	must.NoError(t, c.Receive(t.Context(), name, bytes.NewReader(stream)))
}

func (c column) send(t testing.TB, name, snapshot, since string) []byte {
	t.Helper()
	var stream bytes.Buffer
	must.NoError(t, c.Send(t.Context(), name, snapshot, since, &stream))
	return stream.Bytes()
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

func (c column) snapshots(t testing.TB, name string) (all []string) {
	t.Helper()
	snapshots, err := c.Snapshots(t.Context(), name)
	must.NoError(t, err)
	for _, s := range snapshots {
		all = append(all, s.Name)
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

// fill writes random bytes, with an fsync for each MiB, until there is an error, or up to most.
func fill(t testing.TB, path string, most int64) (written int64, err error) {
	t.Helper()
	f, err := os.Create(filepath.Join(path, "filling"))
	must.NoError(t, err)
	defer f.Close()
	block := make([]byte, 128<<10)
	_, err = rand.Read(block)
	must.NoError(t, err)
	for i := uint64(0); written < most; i++ {
		binary.LittleEndian.PutUint64(block, i) // no two alike
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

// sum is a checksum of all files of a directory, with their names and modes.
func sum(t testing.TB, path string) string {
	t.Helper()
	h := sha256.New()
	must.NoError(t, filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %s %d\n", strings.TrimPrefix(file, path), info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
		if d.Type().IsRegular() {
			content, err := os.ReadFile(file)
			h.Write(content)
			return err
		}
		return nil
	}))
	return fmt.Sprintf("%x", h.Sum(nil))
}

// soon waits until a number of the file system, which counts behind, is right.
func (c column) soon(t testing.TB, name string, ok func(d engine.Dataset) bool) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		d, err := c.Get(t.Context(), name)
		if err == nil && !ok(d) {
			syscall.Sync()
			must.NoError(t, c.Tag(t.Context(), name, nil)) // of which ZFS makes a transaction now
			err = fmt.Errorf("it is still %+v", d)
		}
		return err
	})
}

func isFull(err error) bool { return errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.ENOSPC) }
