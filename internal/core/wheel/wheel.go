// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package wheel makes Python wheels and source distributions for tests and benchmarks, and finds uv for them.
package wheel

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Wheel is a pure Python wheel (PyPA's binary distribution format). It contains a module with the wheel's name that
// defines VERSION, unless Files contains a package with this name.
type Wheel struct {
	Name, Version string
	Requires      []string          // Requires-Dist
	Python        string            // Requires-Python
	Tag           string            // compatible interpreters, such as "pp39-none-any"; "" for all of Python 3
	Files         map[string]string // additional files by their path in the archive; paths are not checked
	Modes         map[string]uint32 // modes of files; with S_IFLNK the content is the link's target
}

// File is the wheel's file name.
func (w Wheel) File() string { return w.stem() + "-" + w.tag() + ".whl" }

func (w Wheel) module() string { return strings.ReplaceAll(w.Name, "-", "_") }
func (w Wheel) stem() string   { return w.module() + "-" + w.Version }
func (w Wheel) tag() string    { return cmp.Or(w.Tag, "py3-none-any") }

func (w Wheel) metadata() string {
	text := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", w.Name, w.Version)
	for _, r := range w.Requires {
		text += "Requires-Dist: " + r + "\n"
	}
	if w.Python != "" {
		text += "Requires-Python: " + w.Python + "\n"
	}
	return text
}

// Write writes the wheel to a directory.
func (w Wheel) Write(dir string) error {
	b, err := w.Archive()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, w.File()), b, 0o644)
}

// Archive returns the content of the wheel's file.
func (w Wheel) Archive() ([]byte, error) {
	info := w.stem() + ".dist-info/"
	files := map[string]string{
		info + "METADATA": w.metadata(),
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: outrider\nRoot-Is-Purelib: true\nTag: " + w.tag() + "\n",
	}
	if _, ok := w.Files[w.module()+"/__init__.py"]; !ok {
		files[w.module()+".py"] = fmt.Sprintf("VERSION = %q\n", w.Version)
	}
	maps.Copy(files, w.Files)
	var record strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256([]byte(files[name]))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
	}
	files[info+"RECORD"] = record.String() + info + "RECORD,,\n"
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		h.CreatorVersion, h.ExternalAttrs = 3<<8, cmp.Or(w.Modes[name], 0o100644)<<16 // 3: made on Unix, with a Unix mode
		f, err := z.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write([]byte(files[name])); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// WriteSource writes a source distribution of the wheel to a directory. Building it only runs this Python code, either
// as setup.py or as a build backend in the distribution (PEP 517, backend-path).
func (w Wheel) WriteSource(dir, code string) error {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	tw := tar.NewWriter(z)
	for _, f := range [][2]string{
		{"PKG-INFO", w.metadata()},
		{"pyproject.toml", "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n"},
		{"setup.py", code + "\n"},
		{"backend.py", code + "\n"},
	} {
		h := &tar.Header{Name: w.stem() + "/" + f[0], Mode: 0o644, Size: int64(len(f[1])), Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write([]byte(f[1])); err != nil {
			return err
		}
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, w.stem()+".tar.gz"), b.Bytes(), 0o644)
}
