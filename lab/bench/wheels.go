package main

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeWheel makes a pure Python wheel of a package with so many modules (the binary
// distribution format of PyPA's specifications). Its version is 1.0.
func writeWheel(dir, name string, modules int) (err error) {
	f, err := os.Create(filepath.Join(dir, name+"-1.0-py3-none-any.whl"))
	if err != nil {
		return err
	}
	defer func() {
		if closing := f.Close(); err == nil {
			err = closing
		}
	}()
	z := zip.NewWriter(f)
	var record strings.Builder
	add := func(path, content string) error {
		sum := sha256.Sum256([]byte(content))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", path, base64.RawURLEncoding.EncodeToString(sum[:]), len(content))
		return addFile(z, path, content)
	}
	if err := add(name+"/__init__.py", ""); err != nil {
		return err
	}
	for i := range modules - 1 {
		if err := add(fmt.Sprintf("%s/module%d.py", name, i), moduleSource(name, i)); err != nil {
			return err
		}
	}
	info := name + "-1.0.dist-info/"
	if err := add(info+"METADATA", fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: 1.0\n", name)); err != nil {
		return err
	}
	if err := add(info+"WHEEL", "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"); err != nil {
		return err
	}
	if err := addFile(z, info+"RECORD", record.String()+info+"RECORD,,\n"); err != nil {
		return err
	}
	return z.Close()
}

func addFile(z *zip.Writer, path, content string) error {
	h := &zip.FileHeader{Name: path, Method: zip.Deflate}
	h.SetMode(0o644)
	w, err := z.CreateHeader(h)
	if err != nil {
		return err
	}
	_, err = w.Write([]byte(content))
	return err
}

// moduleSource is about 2 kB of functions, so that a module takes what one usually takes to
// be unpacked and compiled.
func moduleSource(pkg string, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\"\"\"Module %d of %s.\"\"\"\n\nimport sys\n", n, pkg)
	for i := range 8 {
		fmt.Fprintf(&b, `

def function_%d_%d(values, limit=%d):
    """Return what is below the limit, in its order."""
    found = []
    for index, value in enumerate(values):
        if value < limit and index %% %d:
            found.append((index, value * %d))
    return sorted(found) or [len(sys.path)]
`, n, i, 100*n+i, i+2, n)
	}
	return b.String()
}
