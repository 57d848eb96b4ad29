// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// bytecode compiles the packages, since tasks can't write beside them: with hashes that are not checked, as the
// sources do not change (PEP 552). The base interpreter runs without site (-S), so nothing of the environment runs. A
// file that does not compile is no error.
func (b *build) bytecode(ctx context.Context) error {
	_ = b.run(ctx, []string{b.Python.Path, "-I", "-S", "-m", "compileall", "-q",
		"--invalidation-mode", "unchecked-hash", b.site}, io.Discard)
	return ctx.Err()
}

// sitePackages is where an environment's packages will be. It has to be asked before: packages may have such
// directories.
func sitePackages(dir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "lib/*/site-packages"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("failed to find site-packages in the new environment: there are %d", len(found))
	}
	return found[0], nil
}

// installed lists the packages of a directory by the names of their metadata (core metadata specification).
func installed(site string) ([]string, error) {
	infos, err := filepath.Glob(filepath.Join(site, "*.dist-info"))
	if err != nil {
		return nil, fmt.Errorf("failed to list the packages: %w", err)
	}
	var packages []string
	for _, info := range infos {
		name, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(info), ".dist-info"), "-")
		packages = append(packages, clean(strings.ReplaceAll(name, "_", "-")+" "+version))
	}
	return packages, nil
}
