// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
)

func TestRemains_NamesTheCache(t *testing.T) {
	dir := t.TempDir()
	test.Eq(t, []string{dir + " stays, with the environments of programs: remove it, unless the plugin is to come back"},
		remains(Config{CacheDir: dir}))
	test.SliceEmpty(t, remains(Config{CacheDir: filepath.Join(dir, "missing")}))
}
