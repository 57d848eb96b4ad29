// Package wheeltest makes wheels and package indexes for tests.
package wheeltest

import (
	"archive/zip"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Wheel is a pure Python wheel (the binary distribution format of PyPA's
// specifications). By default it has one module of its name, with VERSION in it.
type Wheel struct {
	Name, Version string
	Requires      []string          // Requires-Dist
	Python        string            // Requires-Python
	Tag           string            // which interpreters it is for, "" for any: "pp39-none-any"
	Files         map[string]string // more files by their path in the archive, which may be any
	Modes         map[string]uint32 // of files: permissions with S_IFLNK for a link, whose target is its content
}

// File is the wheel's file name.
func (w Wheel) File() string { return fmt.Sprintf("%s-%s-%s.whl", w.module(), w.Version, w.tag()) }

func (w Wheel) tag() string { return cmp.Or(w.Tag, "py3-none-any") }

func (w Wheel) module() string { return strings.ReplaceAll(w.Name, "-", "_") }

// Bytes is the archive.
func (w Wheel) Bytes(t testing.TB) []byte {
	t.Helper()
	info := fmt.Sprintf("%s-%s.dist-info/", w.module(), w.Version)
	metadata := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", w.Name, w.Version)
	for _, r := range w.Requires {
		metadata += "Requires-Dist: " + r + "\n"
	}
	if w.Python != "" {
		metadata += "Requires-Python: " + w.Python + "\n"
	}
	files := map[string]string{
		w.module() + ".py": fmt.Sprintf("VERSION = %q\n", w.Version),
		info + "METADATA":  metadata,
		info + "WHEEL":     "Wheel-Version: 1.0\nGenerator: wheeltest\nRoot-Is-Purelib: true\nTag: " + w.tag() + "\n",
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
		mode := uint32(0o100644)
		if m, ok := w.Modes[name]; ok {
			mode = m
		}
		h.CreatorVersion, h.ExternalAttrs = 3<<8, mode<<16 // made on Unix
		f, err := z.CreateHeader(h)
		if err == nil {
			_, err = f.Write([]byte(files[name]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Write puts the wheel into a directory, which it makes, and returns its SHA-256 in hex.
func (w Wheel) Write(t testing.TB, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := w.Bytes(t)
	if err := os.WriteFile(filepath.Join(dir, w.File()), b, 0o644); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
