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
	test.Eq(t, []string{dir + " stays, with the device nodes of tasks: remove it when no task has a device"},
		remains(Config{ShadowDir: dir}))
	test.SliceEmpty(t, remains(Config{ShadowDir: filepath.Join(dir, "missing")}))
}
