// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

// archived returns an archive as npm packs it, with a program.
func archived(t *testing.T, name, program string) []byte {
	var all bytes.Buffer
	zipped := gzip.NewWriter(&all)
	files := tar.NewWriter(zipped)
	must.NoError(t, files.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(program))}))
	_, err := files.Write([]byte(program))
	must.NoError(t, err)
	must.NoError(t, files.Close())
	must.NoError(t, zipped.Close())
	return all.Bytes()
}

func TestFetchUV_RefusesAnotherArchive(t *testing.T) {
	bin, scratch := t.TempDir(), t.TempDir()
	other := filepath.Join(bin, "other.tgz")
	must.NoError(t, os.WriteFile(other, archived(t, "package/bin/uv", "#!/bin/sh\n"), 0o644))
	npm := "#!/bin/sh\nexec /bin/cp " + other + " \"$4\"\n" // pack PACKAGE --pack-destination DIR
	must.NoError(t, os.WriteFile(filepath.Join(bin, "npm"), []byte(npm), 0o755))
	t.Setenv("PATH", bin)
	_, err := fetchUV(t.Context(), scratch)
	must.ErrorContains(t, err, "has an unexpected hash")
	must.FileNotExists(t, filepath.Join(scratch, "uv/uv"))
}

func TestUnpackUV_ExtractsOnlyTheProgram(t *testing.T) {
	scratch := t.TempDir()
	archive, dir := filepath.Join(scratch, "a.tgz"), filepath.Join(scratch, "uv")
	must.NoError(t, os.WriteFile(archive, archived(t, "package/bin/uv", "program"), 0o644))
	must.NoError(t, unpackUV(t.Context(), archive, dir))
	content, err := os.ReadFile(filepath.Join(dir, "uv"))
	must.NoError(t, err)
	must.Eq(t, "program", string(content))
	info, err := os.Stat(filepath.Join(dir, "uv"))
	must.NoError(t, err)
	must.Eq(t, os.FileMode(0o755), info.Mode())
	must.NoError(t, os.WriteFile(archive, archived(t, "package/readme", "x"), 0o644))
	must.ErrorContains(t, unpackUV(t.Context(), archive, dir+"2"), "package/bin/uv")
}
