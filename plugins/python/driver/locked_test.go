// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// A lock has the node's index without its credentials.
func TestLock_UsesTheNodesCredentials(t *testing.T) {
	wheels := t.TempDir()
	hash := moon.Write(t, wheels)
	handler := wheeltest.Handler(wheels)
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "hunter2" {
			w.Header().Set("WWW-Authenticate", `Basic realm="index"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(index.Close)
	with := strings.Replace(index.URL, "://", "://user:hunter2@", 1) + "/simple"
	lock := "lock-version = '1.0'\ncreated-by = 'a test'\n[[packages]]\nname = 'moon-phase'\nversion = '1.2'\n" +
		"index = '" + index.URL + "/simple/'\n" +
		"wheels = [{url = '" + index.URL + "/files/" + moon.File() + "', hashes = {sha256 = '" + hash + "'}}]\n"
	files := map[string]string{"app.py": useMoon, "pylock.toml": lock}
	installers(t, func(t *testing.T, a *agent) {
		test.StrHasPrefix(t, "1.2 ", a.runs(a.task("script = \"app.py\"\nlock = \"local/pylock.toml\"", files)))
	}, func(c *Config) { c.IndexURL, c.Offline, c.JobIndexes = with, false, false })
}

func TestUVLock_UsesItsIndexes(t *testing.T) {
	uv := uv(t)
	wheels, private := t.TempDir(), t.TempDir()
	older, newer := moon, moon
	older.Version, newer.Version = "1.0", "2.0"
	older.Write(t, wheels)
	moon.Write(t, private)
	newer.Write(t, wheels)
	wheeltest.Wheel{Name: "sun-spots", Version: "1.0"}.Write(t, wheels)
	main, more := wheeltest.Index(t, wheels).URL+"/simple", wheeltest.Index(t, private).URL+"/simple"
	project := t.TempDir()
	files := map[string]string{
		"app.py": useMoon,
		"pyproject.toml": "[project]\nname = \"app\"\nversion = \"1\"\nrequires-python = \">=3.8\"\n" +
			"dependencies = [\"moon-phase\", \"sun-spots\"]\n" +
			"[tool.uv.sources]\nmoon-phase = { index = \"private\" }\n" +
			"[[tool.uv.index]]\nname = \"private\"\nurl = \"" + more + "\"\nexplicit = true\n",
	}
	must.NoError(t, os.WriteFile(filepath.Join(project, "pyproject.toml"), []byte(files["pyproject.toml"]), 0o644))
	cmd := exec.Command(uv, "lock", "--no-python-downloads", "--no-cache", "--default-index", main)
	cmd.Dir = project
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lock, err := os.ReadFile(filepath.Join(project, "uv.lock"))
	must.NoError(t, err)
	files["uv.lock"] = string(lock)
	for _, may := range []bool{true, false} {
		a := start(t, func(c *Config) { c.IndexURL, c.Offline, c.JobIndexes = main, false, may }, with(uv))
		cfg := a.task("script = \"app.py\"\nlock = \"local/uv.lock\"", files)
		if may {
			test.StrHasPrefix(t, "1.2 ", a.runs(cfg))
		} else if err := a.refused(cfg); !strings.Contains(err.Error(), "job_indexes") {
			t.Error(err)
		}
	}
}
