package wheeltest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Sdist is a source distribution that needs no build tool: it brings its own build
// backend (PEP 517, backend-path), which runs Code and then makes a wheel of its one module.
type Sdist struct {
	Name, Version string
	Code          string // Python
}

// File is its file name.
func (s Sdist) File() string { return fmt.Sprintf("%s-%s.tar.gz", s.wheel().module(), s.Version) }

func (s Sdist) wheel() Wheel { return Wheel{Name: s.Name, Version: s.Version} }

// Write puts it into a directory, which it makes, and returns its SHA-256 in hex.
func (s Sdist) Write(t testing.TB, dir string) string {
	t.Helper()
	backend := fmt.Sprintf(`import base64, os
WHEEL = %q
DATA = %q
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    exec(CODE)
    with open(os.path.join(wheel_directory, WHEEL), "wb") as f:
        f.write(bytes.fromhex(DATA))
    return WHEEL
CODE = %q
`, s.wheel().File(), fmt.Sprintf("%x", s.wheel().Bytes(t)), s.Code)
	top := fmt.Sprintf("%s-%s/", s.wheel().module(), s.Version)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range [][2]string{
		{"PKG-INFO", fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", s.Name, s.Version)},
		{"pyproject.toml", "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n"},
		{"setup.py", s.Code + "\n"},
		{"backend.py", backend},
	} {
		err := w.WriteHeader(&tar.Header{Name: top + f[0], Mode: 0o644, Size: int64(len(f[1])), Format: tar.FormatPAX})
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, s.File()), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b.Bytes()))
}
