// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package build

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestPack_WritesWhatHasChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	packed := func(content string) []byte {
		t.Helper()
		must.NoError(t, os.WriteFile(path, []byte(content), 0o755))
		must.NoError(t, pack(path))
		b, err := os.ReadFile(path + ".gz")
		must.NoError(t, err)
		r, err := gzip.NewReader(bytes.NewReader(b))
		must.NoError(t, err)
		got, err := io.ReadAll(r)
		must.NoError(t, err)
		must.Eq(t, content, string(got))
		return b
	}
	first := packed("one")
	before, err := os.Stat(path + ".gz")
	must.NoError(t, err)
	packed("one")
	after, err := os.Stat(path + ".gz")
	must.NoError(t, err)
	test.True(t, os.SameFile(before, after))
	packed("two")
	must.NoError(t, os.WriteFile(path+".gz", []byte("half"), 0o644)) // of a build that was killed
	test.Eq(t, first, packed("one"))
	left, err := filepath.Glob(path + ".gz.*")
	must.NoError(t, err)
	test.SliceEmpty(t, left)
}
