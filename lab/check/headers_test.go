// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// header matches a file that begins with the licence header. Only a #! line, or the --- of a YAML document, may precede
// it.
var header = regexp.MustCompile(
	`^(#!.*\n|---\n)?(//|#|/\*) Copyright \(c\) The Outrider Authors( \*/)?\n(//|#|/\*) SPDX-License-Identifier: MPL-2\.0( \*/)?\n\n`)

func TestHeaders_EverySourceFileNamesItsLicence(t *testing.T) {
	files := 0
	root := "../.."
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			switch name := e.Name(); {
			case path == root || name == ".ci" || name == ".github":
				return nil
			case strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist":
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Base(path) == "mage_output_file.go" { // exists only while mage compiles the magefile
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".sh", ".py", ".hcl", ".nix", ".yml", ".yaml", ".css", ".js":
		default:
			if filepath.Base(filepath.Dir(path)) != ".ci" {
				return nil
			}
		}
		files++
		text, err := os.ReadFile(path)
		if err == nil && !header.Match(text) {
			t.Errorf("%s does not begin with the licence header", path)
		}
		return err
	})
	must.NoError(t, err)
	must.Greater(t, 500, files)
}
