// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/hc-install/product"
	"github.com/hashicorp/hc-install/releases"
)

// download installs the release in a directory, and returns the program's path. from selects the server; its zero value
// selects HashiCorp's. hc-install verifies the archive by its checksum, and the checksum by HashiCorp's signature.
func download(ctx context.Context, from releases.ExactVersion, dir string,
	progress func(string, ...any)) (string, error) {
	from.Product = product.Nomad
	from.Version = version.Must(version.NewVersion(Version))
	from.Timeout = 30 * time.Minute
	from.InstallDir = dir
	progress("downloading Nomad %s", Version)
	program, err := from.Install(ctx)
	// an interrupted hc-install leaves its archive; no other lab downloads one now, because the caller holds a lock
	archives, _ := filepath.Glob(filepath.Join(os.TempDir(), "nomad_"+Version+"_*.zip*"))
	for _, archive := range archives {
		os.Remove(archive)
	}
	if err != nil {
		return "", fmt.Errorf("failed to download Nomad %s: %w", Version, err)
	}
	return program, os.Chmod(program, 0o755) // the agent may run as another user
}
