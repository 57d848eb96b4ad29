// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
)

func private(t *testing.T, wheels, password string) string {
	handler := wheel.Index(wheels)
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, has, _ := r.BasicAuth(); user != "build" || has != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="index"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(index.Close)
	return index.URL + "/simple"
}

// withNetrc writes the task's secrets/.netrc with a user and this password for 127.0.0.1, where tests serve indexes.
func withNetrc(t *testing.T, cfg *drivers.TaskConfig, password string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(cfg.TaskDir().SecretsDir, ".netrc")
	must.NoError(t, os.WriteFile(path, []byte("machine 127.0.0.1\n  login build\n  password "+password+"\n"), mode))
	must.NoError(t, os.Chmod(path, mode))
}

func TestNetrc_GivesAccessToPrivateIndexes(t *testing.T) {
	wheels := t.TempDir()
	moon.Write(t, wheels)
	url := private(t, wheels, "hunter2x")
	a := start(t, func(c *Config) { c.Offline, c.IndexURL = false, url })
	for _, config := range []string{
		`requirements = ["moon-phase"]`, "requirements = [\"moon-phase>=1\"]\nindex_url = \"" + url + "\"",
	} {
		cfg := a.task("script = \"app.py\"\n"+config, map[string]string{"app.py": useMoon})
		withNetrc(t, cfg, "hunter2x", 0o644)
		test.StrHasPrefix(t, "1.2 ", a.runs(cfg), test.Sprint(config))
		other := a.task("script = \"app.py\"\n"+config, map[string]string{"app.py": useMoon})
		err := a.refused(other)
		test.StrNotContains(t, err.Error(), "hunter2x",
			test.Sprintf("%s, without a password: %v", config, err))
		wrong := a.task("script = \"app.py\"\n"+config, map[string]string{"app.py": useMoon})
		withNetrc(t, wrong, "swordfish", 0o644)
		err = a.refused(wrong)
		test.StrNotContains(t, err.Error(), "swordfish",
			test.Sprintf("%s, with another password: %v", config, err))
		a.hasSaid()
		for _, e := range append(append(a.said(cfg), a.said(wrong)...), a.said(other)...) {
			must.StrNotContains(t, e, "hunter2x")
			test.StrNotContains(t, e, "swordfish")
		}
	}
	metas, err := filepath.Glob(filepath.Join(a.dir, "cache/meta/*.json"))
	must.NoError(t, err)
	test.SliceLen(t, 2, metas, test.Sprintf("there are %d environments", len(metas)))
	must.NoError(t, filepath.WalkDir(filepath.Join(a.dir, "cache"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		must.StrNotContains(t, string(content), "hunter2x", must.Sprintf("%s has a password", path))
		test.StrNotContains(t, string(content), "swordfish", test.Sprintf("%s has a password", path))
		return err
	}))
}

func TestNetrc_IsReadWithTheRightsOfTheTask(t *testing.T) {
	testsupport.NeedRoot(t)
	wheels := t.TempDir()
	moon.Write(t, wheels)
	url := private(t, wheels, "hunter2x")
	a := start(t, func(c *Config) { c.Offline, c.IndexURL = false, url })
	const config = "script = \"app.py\"\nrequirements = [\"moon-phase\"]"
	cfg := a.task(config, map[string]string{"app.py": useMoon}, asUserOf("nobody"))
	withNetrc(t, cfg, "hunter2x", 0o600) // readable only by root
	err := a.refused(cfg)
	must.StrContains(t, err.Error(), "secrets/.netrc", must.Sprint(err))
	test.StrContains(t, err.Error(), "permission denied", test.Sprint(err))
	path := filepath.Join(cfg.TaskDir().SecretsDir, ".netrc")
	must.NoError(t, os.Remove(path))
	must.NoError(t, os.Symlink("/etc/shadow", path))
	err = a.refused(cfg)
	test.StrContains(t, err.Error(), "permission denied", test.Sprint(err))
}

// A uv.lock has the URL of the node's index without the credentials, which the driver must add from its own config.
func TestUVLock_UsesTheNodesCredentials(t *testing.T) {
	wheels := t.TempDir()
	moon.Write(t, wheels)
	url := private(t, wheels, "hunter2")
	with := strings.Replace(url, "://", "://build:hunter2@", 1)
	const project = "[project]\nname = \"app\"\nversion = \"1\"\nrequires-python = \">=3.8\"\n" +
		"dependencies = [\"moon-phase\"]\n"
	files := map[string]string{"app.py": useMoon, "pyproject.toml": project, "uv.lock": uvLock(t, with, project)}
	must.StrNotContains(t, files["uv.lock"], "hunter2")
	a := start(t, func(c *Config) { c.IndexURL, c.Offline, c.JobIndexes = with, false, false })
	test.StrHasPrefix(t, "1.2 ", a.runs(a.task("script = \"app.py\"\nlock = \"local/uv.lock\"", files)))
}
