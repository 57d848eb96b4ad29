// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package builders

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// TestIs_KnowsBuildersOfEachRelease: the plugins of a node may be of different versions.
func TestIs_KnowsBuildersOfEachRelease(t *testing.T) {
	const builder, namesFile = 4711, "names.txt"
	record := func(t *testing.T, dir string) {
		own := filepath.Join(t.TempDir(), "builders")
		must.NoError(t, Declare(own, builder))
		entries, err := os.ReadDir(own)
		must.NoError(t, err)
		must.SliceLen(t, 1, entries)
		must.NoError(t, os.WriteFile(filepath.Join(dir, namesFile), []byte(entries[0].Name()+"\n"), 0o644))
	}
	testsupport.EachRelease(t, record, func(t *testing.T, dir string) {
		b, err := os.ReadFile(filepath.Join(dir, namesFile))
		must.NoError(t, err)
		own := filepath.Join(t.TempDir(), "builders")
		must.NoError(t, Make(own))
		test.False(t, is(t, own, builder))
		must.NoError(t, os.WriteFile(filepath.Join(own, strings.TrimSpace(string(b))), nil, 0o600))
		test.True(t, is(t, own, builder))
	})
}
