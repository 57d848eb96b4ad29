// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestFingerprint_IsUnhealthyOnANoexecMount(t *testing.T) {
	testsupport.NeedRoot(t) // only root can mount
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	defer func() { test.NoError(t, unix.Unmount(dir, 0)) }()
	a := start(t, func(c *Config) { c.CacheDir = filepath.Join(dir, "not/yet") })
	_, err := a.python.Fingerprint(t.Context())
	test.ErrorContains(t, err, "cache_dir is on a noexec mount ("+dir+")")
}
