// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"os"
	"path/filepath"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Command is Build for a person: it prints what it does, and the files that it made.
func Command(ctx context.Context, root, plugin, arch string) error {
	p := term.New(os.Stdout)
	o := Options{Root: root, Plugin: plugin, Progress: p.Progress}
	if arch != "" {
		o.Archs = []string{arch}
	}
	end := p.Step("Making the release")
	results, err := Build(ctx, o)
	end(err, "")
	for _, r := range results {
		for _, name := range r.Files {
			p.Println("%s", filepath.Join(r.Dir, name))
		}
	}
	return err
}
