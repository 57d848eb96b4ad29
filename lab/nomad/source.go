// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"

	"github.com/outrider-dev/outrider/lab/internal/gobuild"
)

// sourceMod and sourceSum are go.mod and go.sum of a module without code that builds Nomad. It requires the pinned
// release, repeats the replace directives of Nomad's go.mod, which Go ignores in dependencies, and pins every checksum.
//
//go:embed source/go.mod.txt
var sourceMod []byte

//go:embed source/go.sum.txt
var sourceSum []byte

// buildSource builds Nomad with its web UI in a directory. It takes minutes with an empty Go build cache, and about one
// minute otherwise.
func buildSource(ctx context.Context, dir string) (string, error) {
	for name, content := range map[string][]byte{"go.mod": sourceMod, "go.sum": sourceSum} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return "", err
		}
	}
	out := filepath.Join(dir, "nomad")
	err := gobuild.Build{
		Dir: dir,
		Env: []string{"GOWORK=off", "GOFLAGS=-mod=readonly", "GOOS=", "GOARCH="},
		Args: []string{"-trimpath", "-buildvcs=false", "-tags", "release ui", "-ldflags", "-s -w",
			"-o", out, "github.com/hashicorp/nomad"},
	}.Run(ctx)
	return out, err
}
