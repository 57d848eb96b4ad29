// Package wheel makes wheels and source distributions to test and to measure with.
package wheel

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Wheel is a pure Python wheel (the binary distribution format of PyPA's specifications).
type Wheel struct {
	Name, Version string            // the name has no hyphens
	Requires      []string          // Requires-Dist
	Files         map[string]string // by path; where no package of its name is among them, it has a module that has its VERSION
}

// File is its file name.
func (w Wheel) File() string { return w.stem() + "-py3-none-any.whl" }

func (w Wheel) stem() string { return w.Name + "-" + w.Version }

// Write puts the wheel into a directory.
func (w Wheel) Write(dir string) error {
	b, err := w.bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, w.File()), b, 0o644)
}

func (w Wheel) bytes() ([]byte, error) {
	info := w.stem() + ".dist-info/"
	files := map[string]string{
		info + "METADATA": w.metadata(),
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
	}
	if _, ok := w.Files[w.Name+"/__init__.py"]; !ok {
		files[w.Name+".py"] = fmt.Sprintf("VERSION = %q\n", w.Version)
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
		h.SetMode(0o644)
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

func (w Wheel) metadata() string {
	text := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", w.Name, w.Version)
	for _, r := range w.Requires {
		text += "Requires-Dist: " + r + "\n"
	}
	return text
}

// WriteSource puts a source distribution into a directory. It brings its own build
// backend (PEP 517, backend-path), which runs code and then has the wheel.
func (w Wheel) WriteSource(dir, code string) error {
	wheel, err := w.bytes()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	tw := tar.NewWriter(z)
	for name, content := range map[string]string{
		"PKG-INFO":       w.metadata(),
		"pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
		"wheel":          string(wheel),
		"backend.py": "import os, shutil\n" +
			"def build_wheel(directory, config_settings=None, metadata_directory=None):\n" +
			"    exec(" + strconv.Quote(code) + ", {})\n" +
			"    wheel = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'wheel')\n" +
			"    shutil.copy(wheel, os.path.join(directory, '" + w.File() + "'))\n" +
			"    return '" + w.File() + "'\n",
	} {
		err := tw.WriteHeader(&tar.Header{Name: w.stem() + "/" + name, Mode: 0o644, Size: int64(len(content)), Format: tar.FormatPAX})
		if err != nil {
			return err
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			return err
		}
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, w.stem()+".tar.gz"), b.Bytes(), 0o644)
}
