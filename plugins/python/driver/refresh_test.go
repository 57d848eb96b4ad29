// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

func TestRefresh_BuildsAnew(t *testing.T) {
	wheels := t.TempDir()
	moon.Write(t, wheels)
	handler := wheel.Index(wheels)
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=600") // as PyPI has
		handler.ServeHTTP(w, r)
	}))
	defer index.Close()
	withUV(t, func(t *testing.T, a *agent) {
		runs := func(config, version, event string) {
			t.Helper()
			cfg := a.task("script = \"app.py\"\nrequirements = [\"moon-phase\"]\n"+config,
				map[string]string{"app.py": useMoon})
			test.StrHasPrefix(t, version+" ", a.runs(cfg), test.Sprint(config))
			a.says(cfg, event)
		}
		runs("", "1.2", "built in")
		later := moon
		later.Version = "1.3"
		later.Write(t, wheels)
		runs("", "1.2", ": cache hit")
		runs("refresh = true", "1.3", "built in")
		runs("", "1.2", ": cache hit")
	}, func(c *Config) { c.Offline, c.IndexURL = false, index.URL+"/simple" })
}
