// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"bufio"
	"context"
	"fmt"
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

// The test binary, if the environment variable lockVar is set to a directory, locks "key" there until it is killed. If
// programVar is set to a program, the test binary also runs this program, which then holds the lock, too.
const (
	lockVar    = "DATASET_LOCK"
	programVar = "DATASET_PROGRAM"
)

func holdLock() int {
	e := &engine.Engine{Locks: os.Getenv(lockVar)}
	ctx, _, err := e.Lock(context.Background(), "key", time.Minute)
	if err != nil {
		println(err.Error())
		return 1
	}
	println("locked")
	if program := os.Getenv(programVar); program != "" {
		_, _ = engine.Open(program, "tank/fast").Look(ctx)
	}
	testsupport.BlockUntilKilled()
	return 0
}

func TestLock_IsReleasedWhenItsProcessEnds(t *testing.T) {
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

	_, unlock, err := e.Lock(t.Context(), "another", time.Minute)
	must.NoError(t, err)
	unlock()
	_, _, err = e.Lock(t.Context(), "key", 50*time.Millisecond)
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.ErrorContains(t, err, `dataset "key" is being changed by another process`)

	e.SweepLocks()
	files, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.SliceLen(t, 1, files) // the lock of the other process
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	e.SweepLocks()
	files, err = os.ReadDir(dir)
	must.NoError(t, err)
	must.SliceEmpty(t, files)
	_, unlock, err = e.Lock(t.Context(), "key", time.Minute)
	must.NoError(t, err)
	unlock()
	must.SliceEmpty(t, entries(t, dir))
}

// A program holds the lock until its end, because the kernel executes the program's last system call even after the
// program and the process that ran it were killed.
func TestLock_IsKeptUntilItsProgramsEnd(t *testing.T) {
	t.Parallel() // the test waits for a program that hangs
	for name, end := range map[string]func(t *testing.T, locks, program string, works func()){
		"a process was killed": func(t *testing.T, locks, program string, works func()) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), lockVar+"="+locks, programVar+"="+program)
			must.NoError(t, cmd.Start())
			works()
			must.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
		},
		"a program was abandoned": func(t *testing.T, locks, program string, works func()) {
			e := &engine.Engine{Locks: locks}
			ctx, unlock, err := e.Lock(t.Context(), "key", time.Minute)
			must.NoError(t, err)
			ctx, cancel := context.WithCancel(ctx)
			looked := make(chan error, 1)
			go func() {
				_, err := engine.Open(program, "tank/fast").Look(ctx)
				looked <- err
			}()
			works()
			cancel()
			must.ErrorIs(t, <-looked, engine.ErrUnavailable)
			unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program := filepath.Join(dir, "zfs")
			must.NoError(t, os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\ncd %q || exit 1\n"+
				"(: >works; while [ -e works ]; do sleep 0.1; done) &\nwait\n", dir), 0o755))
			e := &engine.Engine{Locks: filepath.Join(dir, "locks")}
			end(t, e.Locks, program, func() {
				testsupport.Eventually(t, "the program works", func() bool { return testsupport.Exists(dir + "/works") })
			})
			_, _, err := e.Lock(t.Context(), "key", 50*time.Millisecond)
			must.ErrorIs(t, err, context.DeadlineExceeded)
			e.SweepLocks()
			must.SliceLen(t, 1, entries(t, e.Locks))
			must.NoError(t, os.Remove(dir+"/works"))
			_, unlock, err := e.Lock(t.Context(), "key", time.Minute)
			must.NoError(t, err)
			unlock()
			must.SliceEmpty(t, entries(t, e.Locks))
		})
	}
}

func TestLock_HasOneHolderAtATime(t *testing.T) {
	e := &engine.Engine{Locks: filepath.Join(t.TempDir(), "locks")}
	var all sync.WaitGroup
	var holders, most atomic.Int32
	for range 8 {
		all.Go(func() {
			for range 20 {
				_, unlock, err := e.Lock(t.Context(), "key", time.Minute)
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
		_, _, err := e.Lock(t.Context(), key, time.Minute)
		must.ErrorContains(t, err, "can't be the id of a dataset")
	}
}
