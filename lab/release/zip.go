// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"archive/zip"
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// zip writes the archive: the binary, and what belongs to it. All files have the time of the commit.
func (a *artefact) zip(_ context.Context, dir string) (err error) {
	text, err := os.ReadFile(a.path)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s_%s_linux_%s.zip", a.name(), a.version(), a.arch)
	out, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer out.Close()
	archive := zip.NewWriter(out)
	for _, f := range append([]file{{name: a.plugin.Binary, text: text, mode: 0o755}}, a.documents...) {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: a.time}
		header.SetMode(f.mode)
		w, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := w.Write(f.text); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return out.Close()
}
