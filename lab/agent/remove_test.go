// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestRemoveAll_RemovesSealedDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	for _, p := range []string{"sealed/deep", "closed/deep"} {
		must.NoError(t, os.MkdirAll(filepath.Join(dir, p), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(dir, p, "f"), nil, 0o444))
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{"sealed/deep", 0o555}, {"closed/deep", 0}, {"sealed", 0o555}, {"closed", 0}} {
		must.NoError(t, os.Chmod(filepath.Join(dir, d.path), d.mode))
	}
	if os.Geteuid() != 0 {
		must.Error(t, os.RemoveAll(dir),
			must.Sprint("they could be removed without more ado: this tests nothing"))
	}
	test.NoError(t, removeAll(dir))
	_, err := os.Lstat(dir)
	test.True(t, os.IsNotExist(err), test.Sprintf("it is still there: %v", err))
}
