// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sumsFile is checked by: sha256sum --check --ignore-missing SHA256SUMS
const sumsFile = "SHA256SUMS"

// writeSums writes the checksums of a directory's files.
func writeSums(dir string) error {
	names, err := listed(dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), name)
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(sums.String()), 0o644)
}

// listed are the names of a directory's files, in order, SHA256SUMS at last.
func listed(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if i := slices.Index(names, sumsFile); i >= 0 {
		names = append(slices.Delete(names, i, i+1), sumsFile)
	}
	return names, nil
}
