// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"errors"
	"io/fs"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// removeTree follows no links. Tidy tries to remove again what it leaves.
func (s *store) removeTree(paths ...string) {
	for _, path := range paths {
		if err := owndir.RemoveAll(path); err != nil {
			s.log("failed to remove %s, Tidy will try again: %v", path, err)
		}
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
