// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

func TestBuild_TimeoutIsRecoverable(t *testing.T) {
	never := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer never.Close()
	a := start(t, func(c *Config) { c.Offline, c.IndexURL, c.BuildTimeout = false, never.URL+"/simple", "2s" })
	err := a.refused(a.task("code = \"1\"\nrequirements = [\"moon-phase\"]", nil))
	if !strings.Contains(err.Error(), "failed to build the environment within 2s (build_timeout)") ||
		!structs.IsRecoverable(err) {
		t.Errorf("recoverable %t: %v", structs.IsRecoverable(err), err)
	}
}

// age makes all cached environments older: it moves their recorded build time back.
func (a *agent) age(by time.Duration) {
	a.t.Helper()
	entries, err := filepath.Glob(filepath.Join(a.dir, "cache/meta/*.json"))
	must.NoError(a.t, err)
	for _, path := range entries {
		content, err := os.ReadFile(path)
		must.NoError(a.t, err)
		var entry map[string]any
		must.NoError(a.t, json.Unmarshal(content, &entry))
		built, err := time.Parse(time.RFC3339, entry["built"].(string))
		must.NoError(a.t, err)
		entry["built"] = built.Add(-by)
		content, err = json.Marshal(entry)
		must.NoError(a.t, err)
		must.NoError(a.t, os.WriteFile(path, content, 0o600))
	}
}

// An environment of requirements without a lock is built again if it is older than refresh_after, or if refresh is set.
func TestRefresh_RebuildsTheEnvironment(t *testing.T) {
	wheels := t.TempDir()
	moon.Write(t, wheels)
	handler := wheel.Index(wheels)
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=600") // as PyPI does
		handler.ServeHTTP(w, r)
	}))
	defer index.Close()
	a := start(t, func(c *Config) { c.Offline, c.IndexURL, c.RefreshAfter = false, index.URL+"/simple", "29h" })
	for n, step := range []struct {
		appears, config string
		older           time.Duration
		version, event  string
	}{
		{appears: "1.2", version: "1.2", event: "built in"},
		{appears: "1.3", older: 28 * time.Hour, version: "1.2", event: ": cache hit"},
		{config: "refresh = true", version: "1.3", event: "built in"},
		{older: 2 * time.Hour, version: "1.3", event: "not in the cache"},
	} {
		if step.appears != "" {
			newer := moon
			newer.Version = step.appears
			newer.Write(t, wheels)
		}
		a.age(step.older)
		cfg := a.task("script = \"app.py\"\nrequirements = [\"moon-phase\"]\n"+step.config,
			map[string]string{"app.py": useMoon})
		test.StrHasPrefix(t, step.version+" ", a.runs(cfg), test.Sprint(n))
		a.says(cfg, step.event)
	}
}
