// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestLintWords_FindsPhrases(t *testing.T) {
	root := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(root, "page.md"), []byte("The task has its own group.\n"), 0o600))
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}} {
		_, err := output(t.Context(), nil, root, "git", args...)
		must.NoError(t, err)
	}
	must.NoError(t, lintWords(t.Context(), root))
	const text = "The task has a group " + "of its own.\n"
	must.NoError(t, os.WriteFile(filepath.Join(root, "page.md"), []byte(text), 0o600))
	err := lintWords(t.Context(), root)
	test.ErrorContains(t, err, "page.md:1:")
	test.ErrorContains(t, err, `write "its own X, or a separate X"`)
}
