// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// sumsFile is checked by: sha256sum --check --ignore-missing SHA256SUMS
const sumsFile = "SHA256SUMS"

// writeSums writes the checksums of a directory's files, and returns the names of all.
func writeSums(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, err
	}
	var names []string
	var sums strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		names = append(names, e.Name())
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), e.Name())
	}
	return append(names, sumsFile), os.WriteFile(filepath.Join(dir, sumsFile), []byte(sums.String()), 0o644)
}
