// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
)

func TestRemains_NamesTheDeviceNodes(t *testing.T) {
	dir := t.TempDir()
	what, inUse := remains(Config{ShadowDir: dir})
	test.Eq(t, []string{dir + " stays, with the device nodes of tasks: remove it when no task has a device"}, what)
	test.NoError(t, inUse)
	what, _ = remains(Config{ShadowDir: filepath.Join(dir, "missing")})
	test.SliceEmpty(t, what)
}
