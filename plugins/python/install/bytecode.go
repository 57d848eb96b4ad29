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

// bytecode compiles the packages, because tasks cannot write there. The sources do not change, so the interpreter need
// not check their hashes (PEP 552). Without site (-S) no code of the environment runs. A file that does not compile is
// not an error.
func (b *build) bytecode(ctx context.Context) error {
	_ = b.run(ctx, []string{b.Python.Path, "-I", "-S", "-m", "compileall", "-q",
		"--invalidation-mode", "unchecked-hash", b.site}, io.Discard)
	return ctx.Err()
}

// sitePackages returns where the packages of an empty environment will be. (Packages may contain such directories.)
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
