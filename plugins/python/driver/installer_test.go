// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/python/environment"
)

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

func TestFingerprint_IsUnhealthyWhereNoEnvironmentCanRun(t *testing.T) {
	testsupport.NeedRoot(t) // only root can mount
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	defer func() { test.NoError(t, unix.Unmount(dir, 0)) }()
	a := start(t, func(c *Config) { c.CacheDir = filepath.Join(dir, "not/yet") }, with(uv(t)))
	_, err := a.python.Fingerprint(t.Context())
	test.ErrorContains(t, err, "cache_dir is on a mount with noexec, "+dir)
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
