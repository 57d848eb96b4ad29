// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// standalone returns an archive like those of python-build-standalone, with this machine's interpreter.
func standalone(t *testing.T, top, version string) []byte {
	t.Helper()
	real, err := filepath.EvalSymlinks(testsupport.Python)
	must.NoError(t, err)
	program, err := os.ReadFile(real)
	must.NoError(t, err)
	settings := "# system configuration generated and used by the sysconfig module\nbuild_time_vars = {'CC': 'cc'}\n"
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for _, f := range []struct {
		tar.Header
		content string
	}{
		{tar.Header{Name: "bin/python" + version, Mode: 0o755}, string(program)},
		{tar.Header{Name: "bin/python3", Typeflag: tar.TypeSymlink, Linkname: "python" + version}, ""},
		{tar.Header{Name: "lib/python" + version + "/_sysconfigdata__linux_x86_64-linux-gnu.py", Mode: 0o644}, settings},
		{tar.Header{Name: "share/terminfo/a", Mode: 0o644}, ""},
		{tar.Header{Name: "share/terminfo/b", Typeflag: tar.TypeLink, Linkname: top + "share/terminfo/a"}, ""},
	} {
		f.Name, f.Size = top+f.Name, int64(len(f.content))
		must.NoError(t, w.WriteHeader(&f.Header))
		_, err := io.WriteString(w, f.content)
		must.NoError(t, err)
	}
	must.NoError(t, w.Close())
	return all.Bytes()
}

// zstandard returns a Zstandard frame (RFC 8878) with content in uncompressed blocks.
func zstandard(content []byte) []byte {
	const most = 1 << 17
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3} // magic number, no flags, a window of 128 KiB
	for len(content) > 0 {
		n := min(most, len(content))
		header := n << 3
		if n == len(content) {
			header |= 1
		}
		frame = append(frame, byte(header), byte(header>>8), byte(header>>16))
		frame = append(frame, content[:n]...)
		content = content[n:]
	}
	return frame
}

// mirror returns a directory with an archive of a CPython version, at the path where uv looks for the archive.
func mirror(t *testing.T, version string) string {
	t.Helper()
	out, err := exec.Command(uv(t), "python", "list", "--only-downloads", "--output-format", "json", "--no-config",
		"--no-cache", "cpython=="+version).Output()
	must.NoError(t, err)
	var offers []struct{ URL string }
	must.NoError(t, json.Unmarshal(out, &offers))
	must.SliceLen(t, 1, offers, must.Sprintf("this uv does not offer %s", version))
	dir := t.TempDir()
	must.NoError(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	_, path, _ := strings.Cut(offers[0].URL, "/releases/download/")
	path = filepath.Join(dir, strings.ReplaceAll(path, "%2B", "+"))
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, zstandard(standalone(t, "python/install/", "3.10")), 0o644))
	return dir
}

// uv 0.6.14 has no hash of CPython 3.10.0's archive, so it accepts the test's archive.
func TestPythonInstall_InstallsMissingInterpreters(t *testing.T) {
	t.Setenv("UV_PYTHON_INSTALL_MIRROR", "file://"+mirror(t, "3.10.0"))
	none := func(c *Config) { c.Interpreters = []string{filepath.Join(filepath.Dir(c.StateDir), "none")} }
	a := start(t, none, func(c *Config) { c.PythonInstall = true })
	attributes, err := a.python.Fingerprint(t.Context())
	must.NoError(t, err)
	versions, _ := attributes["versions"].GetString()
	test.StrContains(t, versions, "3.10.0,")

	const config = "script = \"app.py\"\npython = \"==3.10.0\"\n"
	const script = "import os, sys\nprint(os.path.realpath(sys.executable))\n"
	cfg := a.task(config, map[string]string{"app.py": script})
	python := strings.TrimSpace(a.runs(cfg))
	test.StrHasPrefix(t, filepath.Join(a.dir, "cache/envs"), python)
	test.StrHasSuffix(t, "/bin/python3.10", python)
	a.says(cfg, ", which installs the interpreter cpython 3.10.0")
	info, err := os.Stat(python)
	must.NoError(t, err)
	test.Eq(t, 0o555, info.Mode().Perm(), test.Sprint("not sealed"))

	again := a.task(config+"requirements = [\"moon-phase\"]\nfind_links = [\"local/wheels\"]",
		map[string]string{"app.py": script + "import moon_phase\nprint(moon_phase.VERSION)\n"})
	a.withWheels(again, moon)
	test.Eq(t, python+"\n1.2\n", a.runs(again))
	a.says(again, "cache hit")

	test.ErrorContains(t, a.refused(a.task("code = \"1\"\npython = \"==3.11.9\"", nil)), "for cpython 3.11.9")
	test.ErrorContains(t, a.refused(a.task("code = \"1\"\npython = \"<3\"", nil)), "is not on this node")
}
