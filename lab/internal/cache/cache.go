// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package cache is where downloaded and built things stay between runs, and how
// programs that run at once share them.
package cache

import (
	"fmt"
	"os"
	"path/filepath"
)

// Dir is this project's directory in the user's cache. It may not exist yet.
func Dir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("failed to find the user's cache directory (set HOME or XDG_CACHE_HOME): %w", err)
	}
	return filepath.Join(dir, "outrider"), nil
}
