// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// A database of one vulnerability, in url.Parse of all versions of Go.
var plantedDB = map[string]string{
	"index/db.json": `{"modified": "2026-01-01T00:00:00Z"}`,
	"index/modules.json": `[{"path": "stdlib", "vulns":
		[{"id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z", "fixed": "9.0.0"}]}]`,
	"ID/GO-2026-0001.json": `{"schema_version": "1.3.1", "id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z",
		"published": "2026-01-01T00:00:00Z", "summary": "A plant in net/url", "details": "For a test.",
		"database_specific": {"url": "https://x"},
		"affected": [{"package": {"name": "stdlib", "ecosystem": "Go"},
			"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "9.0.0"}]}],
			"ecosystem_specific": {"imports": [{"path": "net/url", "symbols": ["Parse"]}]}}]}`,
}

func TestVulnerabilities_AreThoseOfCalledFunctions(t *testing.T) {
	testsupport.Long(t, "builds govulncheck, and analyses Go's library")
	govulncheck, err := gotool.Path(t.Context(), "../..", "govulncheck")
	must.NoError(t, err)
	db := t.TempDir()
	for name, text := range plantedDB {
		must.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(db, name)), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(db, name), []byte(text), 0o644))
	}
	const program = "package main\n\nimport \"net/url\"\n\nfunc main() {\n\t_, _ = url.%s(\"x\")\n}\n"
	for call, want := range map[string]string{"Parse": "govulncheck: exit status 3", "QueryUnescape": ""} {
		root := workspace(t, map[string]string{"m/main.go": fmt.Sprintf(program, call)})
		err := vulnerabilities(t.Context(), root, govulncheck, "file://"+db)
		if want == "" {
			must.NoError(t, err)
		} else {
			must.ErrorContains(t, err, want)
		}
	}
}
