// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// lockVar makes the test binary hold a lock in a directory until it is killed.
const lockVar = "DATASET_LOCK"

func holdLock() int {
	e := &engine.Engine{Locks: os.Getenv(lockVar)}
	if _, err := e.Lock(context.Background(), "key"); err != nil {
		println(err.Error())
		return 1
	}
	println("locked")
	testsupport.BlockUntilKilled()
	return 0
}

func TestLock_EndsWithItsProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	e := &engine.Engine{Locks: dir}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), lockVar+"="+dir)
	out, err := cmd.StderrPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, "locked\n", line)

	unlock, err := e.Lock(t.Context(), "another")
	must.NoError(t, err)
	unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = e.Lock(ctx, "key")
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.ErrorContains(t, err, `dataset "key" is being changed by another process`)

	e.SweepLocks()
	files, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.SliceLen(t, 1, files) // it is held
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	e.SweepLocks()
	files, err = os.ReadDir(dir)
	must.NoError(t, err)
	must.SliceEmpty(t, files)
	unlock, err = e.Lock(t.Context(), "key")
	must.NoError(t, err)
	unlock()
	must.SliceEmpty(t, entries(t, dir))
}

func TestLock_HasOneHolderAtATime(t *testing.T) {
	e := &engine.Engine{Locks: filepath.Join(t.TempDir(), "locks")}
	var all sync.WaitGroup
	var holders, most atomic.Int32
	for range 8 {
		all.Go(func() {
			for range 20 {
				unlock, err := e.Lock(t.Context(), "key")
				must.NoError(t, err)
				most.Store(max(most.Load(), holders.Add(1)))
				time.Sleep(200 * time.Microsecond)
				holders.Add(-1)
				unlock()
			}
		})
	}
	all.Wait()
	must.Eq(t, 1, most.Load())
	for _, key := range []string{"", "..", "a/b", ".x", "a\x00"} {
		_, err := e.Lock(t.Context(), key)
		must.ErrorContains(t, err, "can't be the id of a dataset")
	}
}
