package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// wheel is a pure Python wheel (the binary distribution format of PyPA's
// specifications) with one module of its name, which has its version.
type wheel struct {
	name, version string
	requires      []string
	files         map[string]string // more of them
}

func (w wheel) file() string { return fmt.Sprintf("%s-%s-py3-none-any.whl", w.name, w.version) }

// write puts the wheel into a directory and returns its SHA-256 in hex.
func (w wheel) write(t testing.TB, dir string) string {
	t.Helper()
	b := w.bytes(t)
	writeFile(t, filepath.Join(dir, w.file()), b)
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

func (w wheel) bytes(t testing.TB) []byte {
	t.Helper()
	info := fmt.Sprintf("%s-%s.dist-info/", w.name, w.version)
	metadata := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", w.name, w.version)
	for _, r := range w.requires {
		metadata += "Requires-Dist: " + r + "\n"
	}
	files := map[string]string{
		w.name + ".py":    fmt.Sprintf("VERSION = %q\n", w.version),
		info + "METADATA": metadata,
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: e2e\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
	}
	maps.Copy(files, w.files)
	var record strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256([]byte(files[name]))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
	}
	files[info+"RECORD"] = record.String() + info + "RECORD,,\n"
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := z.Create(name)
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

// writeSource puts a source distribution into a directory. It brings its own build
// backend (PEP 517, backend-path), which runs code and then has the wheel.
func (w wheel) writeSource(t testing.TB, dir, code string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	tw := tar.NewWriter(z)
	top := w.name + "-" + w.version + "/"
	for name, content := range map[string]string{
		"PKG-INFO":       fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", w.name, w.version),
		"pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
		"wheel":          string(w.bytes(t)),
		"backend.py": "import os, shutil\n" +
			"def build_wheel(directory, config_settings=None, metadata_directory=None):\n" +
			"    exec(" + strconv.Quote(code) + ", {})\n" +
			"    wheel = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'wheel')\n" +
			"    shutil.copy(wheel, os.path.join(directory, '" + w.file() + "'))\n" +
			"    return '" + w.file() + "'\n",
	} {
		err := tw.WriteHeader(&tar.Header{Name: top + name, Mode: 0o644, Size: int64(len(content)), Format: tar.FormatPAX})
		if err == nil {
			_, err = tw.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, w.name+"-"+w.version+".tar.gz"), b.Bytes())
}

func writeFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// wheelhouse is a directory with these wheels, which every user can read.
func wheelhouse(t testing.TB, wheels ...wheel) string {
	t.Helper()
	dir := mkdir(t)
	for _, w := range wheels {
		w.write(t, dir)
	}
	return dir
}

// heldIndex is a package index (PEP 503) that does not answer until it is told to.
type heldIndex struct {
	url   string               // for index_url
	asked chan context.Context // gets that of each request that is held

	release func() // may be called twice
}

// holdIndex serves wheels until the end of the test.
func holdIndex(t testing.TB, wheels ...wheel) *heldIndex {
	t.Helper()
	dir := wheelhouse(t, wheels...)
	released := make(chan struct{})
	x := &heldIndex{asked: make(chan context.Context, 100), release: sync.OnceFunc(func() { close(released) })}
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(dir))))
	mux.HandleFunc("/simple/{project}/", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		default:
			x.asked <- r.Context()
			select {
			case <-released:
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("Content-Type", "text/html")
		for _, wheel := range wheels {
			if strings.ReplaceAll(wheel.name, "_", "-") == r.PathValue("project") { // PEP 503, normalized names
				fmt.Fprintf(w, "<!DOCTYPE html><a href=\"/files/%s\">%s</a>\n", wheel.file(), wheel.file())
			}
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(x.release)
	x.url = s.URL + "/simple"
	return x
}

// wait returns when an installer waits for an answer: one that lives.
func (x *heldIndex) wait(t testing.TB, a *alloc) {
	t.Helper()
	for timeout := time.After(60 * time.Second); ; {
		select {
		case request := <-x.asked:
			if request.Err() == nil {
				return
			}
		case <-timeout:
			t.Fatalf("no installer asks the index: %s", a.story())
		}
	}
}
