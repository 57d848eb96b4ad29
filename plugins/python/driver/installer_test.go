// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/install"
)

func TestInstallerFinder_SearchesOnceForAll(t *testing.T) {
	const starts = 50
	var asked, came atomic.Int32
	f := testFinder(func(context.Context) (install.Installer, error) {
		asked.Add(1)
		testsupport.Eventually(t, "all want it", func() bool { return came.Load() == starts })
		return install.Installer{Path: "uv"}, nil
	})
	var all sync.WaitGroup
	for range starts {
		all.Go(func() {
			came.Add(1)
			i, err := f.get(t.Context())
			must.NoError(t, err)
			test.Eq(t, "uv", i.Path)
		})
	}
	all.Wait()
	n := asked.Load()
	test.Eq(t, 1, n, test.Sprintf("it was asked %d times", n))
}

func TestInstallerFinder_SharesItsError(t *testing.T) {
	late := &install.NotKnownError{Path: "/uv", Err: errors.New("late")}
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		asked := 0
		f := testFinder(func(context.Context) (install.Installer, error) {
			asked++
			<-release
			return install.Installer{}, late
		})
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if _, err := f.get(t.Context()); err != late {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		test.Eq(t, 1, asked, test.Sprintf("it was asked %d times", asked))
	})
}

func TestInstallerFinder_DoesNotWaitWhereOneIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := testFinder(func(context.Context) (install.Installer, error) {
			<-release
			return install.Installer{Path: "other"}, nil
		})
		f.last.Store(&search{installer: install.Installer{Path: "uv"}}) // and old
		go f.renew(t.Context())
		synctest.Wait()
		for _, again := range []bool{false, true} {
			i, err := f.ask(t.Context(), again)
			must.NoError(t, err)
			test.Eq(t, "uv", i.Path)
		}
		close(release)
		synctest.Wait()
		i, err := f.renew(t.Context())
		must.NoError(t, err, must.Sprint("then it"))
		test.Eq(t, "other", i.Path, test.Sprint("then it"))
	})
}

func TestInstallerFinder_KeepsAnInstallerThatDoesNotAnswer(t *testing.T) {
	uv, other := install.Installer{Path: "uv", Version: "1"}, install.Installer{Path: "other", Version: "1"}
	notKnown := &install.NotKnownError{Path: "/uv", Err: errors.New("late")}
	gone := errors.New("there is none")
	var log bytes.Buffer
	var answer error
	now, asked := uv, 0
	f := testFinder(func(context.Context) (install.Installer, error) {
		asked++
		return now, answer
	})
	f.logger = hclog.New(&hclog.LoggerOptions{Output: &log})
	for n, step := range []struct {
		answer error
		now    install.Installer
		old    bool // what is known is
		renew  bool
		want   string
		err    error
		asked  int
	}{
		{answer: notKnown, err: notKnown, asked: 1},
		{answer: notKnown, renew: true, err: notKnown, asked: 2},
		{now: uv, want: "uv", asked: 3},
		{now: other, renew: true, want: "uv", asked: 3},
		{answer: notKnown, old: true, renew: true, want: "uv", asked: 4},
		{answer: notKnown, renew: true, want: "uv", asked: 5}, // it is asked again soon,
		{answer: notKnown, want: "uv", asked: 5},              // and no start waits for that
		{answer: context.Canceled, renew: true, err: context.Canceled, asked: 6},
		{answer: gone, want: "uv", asked: 6},
		{now: other, renew: true, want: "other", asked: 7},
		{answer: gone, old: true, renew: true, err: gone, asked: 8},
		{now: uv, want: "uv", asked: 9},
	} {
		answer, now = step.answer, step.now
		if step.old {
			f.last.Load().found = time.Now().Add(-time.Hour)
		}
		i, err := f.ask(t.Context(), step.renew)
		if err == nil && i.Path != step.want || err != step.err || asked != step.asked {
			t.Errorf("step %d: got %s, %v, asked %d times", n, i.Path, err, asked)
		}
	}
	for text, want := range map[string]int{"late": 1 + 1, "there is none": 1} {
		if n := strings.Count(log.String(), text); n != want {
			t.Errorf("%q is %d times in the log:\n%s", text, n, log.String())
		}
	}
}

func TestInstallerFinder_SearchesAgainAfterACancellation(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asking := make(chan struct{})
	f := testFinder(func(of context.Context) (install.Installer, error) {
		if of != ctx {
			return install.Installer{Path: "uv"}, nil
		}
		close(asking)
		<-ctx.Done()
		return install.Installer{}, ctx.Err()
	})
	var all sync.WaitGroup
	all.Go(func() {
		_, err := f.get(ctx)
		test.ErrorIs(t, err, context.Canceled)
	})
	<-asking
	all.Go(func() {
		i, err := f.get(t.Context())
		must.NoError(t, err)
		test.Eq(t, "uv", i.Path)
	})
	cancel()
	all.Wait()
}

func testFinder(find func(context.Context) (install.Installer, error)) *installerFinder {
	return newInstallerFinder(hclog.NewNullLogger(), find)
}

func TestCommand_IsRecoverableWithoutAKnownInstaller(t *testing.T) {
	real := uv(t)
	dir := t.TempDir()
	must.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	must.NoError(t, os.Chmod(dir, 0o755))
	uv := filepath.Join(dir, "uv")
	must.NoError(t, os.WriteFile(uv, []byte(fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", real)), 0o755))
	written, err := os.OpenFile(uv, os.O_WRONLY, 0) // as when it is being installed
	must.NoError(t, err)
	defer written.Close()
	a := start(t, func(c *Config) { c.UV = uv })
	cfg := a.withMoon(useMoon, "moon-phase")
	if err := a.refused(cfg); !structs.IsRecoverable(err) || !strings.Contains(err.Error(), "not known yet") {
		t.Errorf("recoverable %t: %v", structs.IsRecoverable(err), err)
	}
	must.NoError(t, written.Close())
	test.StrHasPrefix(t, "1.2 ", a.runs(cfg))
	a.says(cfg, "building it with uv ")
}

func TestFingerprint_TidiesTheCacheOneAtATime(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.Chmod(dir, 0o755))
	left := filepath.Join(dir, "builds/trash.left")
	must.NoError(t, os.MkdirAll(left, 0o755))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "meta"), 0o700))
	cache := environment.Open(environment.Config{Dir: dir})
	d := &instance{logger: hclog.NewNullLogger(), cache: cache}
	d.tidying.Lock() // as one that takes long does
	d.tidy(t.Context())
	test.True(t, d.tidied.IsZero(), test.Sprint("another one begins"))
	d.tidying.Unlock()
	d.tidy(t.Context())
	d.tidying.Lock()
	defer d.tidying.Unlock()
	_, err := os.Stat(left)
	test.ErrorIs(t, err, os.ErrNotExist, test.Sprint("it was not tidied"))
}
