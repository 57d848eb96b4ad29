// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// workspace writes a go.work with the modules m and lab, and the files.
func workspace(t *testing.T, files map[string]string) string {
	t.Helper()
	t.Setenv("GOWORK", "")
	t.Setenv("GOFLAGS", "")
	root := t.TempDir()
	all := map[string]string{
		"go.work":    "go 1.26\n\nuse (\n\t./m\n\t./lab\n)\n",
		"m/go.mod":   "module x/m\n\ngo 1.26\n",
		"lab/go.mod": "module x/lab\n\ngo 1.26\n",
		"lab/l.go":   "package lab\n",
	}
	maps.Copy(all, files)
	for name, text := range all {
		path := filepath.Join(root, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

// One finding in any module, tests included, fails the whole; and once the program is built,
// no network is needed.
func TestLint_FindsInEveryModule(t *testing.T) {
	program, err := gotool.Path(t.Context(), "../..", "golangci-lint")
	must.NoError(t, err)
	const config = "version: \"2\"\nlinters:\n  default: none\n  enable: [govet, gosec]\nformatters:\n  enable: [gofmt]\n"
	const narrows = "func F(n int64) uint8 { return uint8(n) }\n"
	const narrowsInTest = "package p\n\nimport \"testing\"\n\n" +
		"func TestF(t *testing.T) { n := int64(t.Name()[0]) << 8; t.Log(uint8(n)) }\n"
	t.Setenv("GOPROXY", "off")
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no findings":  {nil, ""},
		"first module": {map[string]string{"m/p.go": "package p\n\n" + narrows}, "m/p.go:3"},
		"last module":  {map[string]string{"lab/l.go": "package lab\n\n" + narrows}, "lab/l.go:3"},
		"test":         {map[string]string{"m/p_test.go": narrowsInTest}, "m/p_test.go:5"},
		"format":       {map[string]string{"m/p.go": "package p\n\nfunc  F() {}\n"}, "not properly formatted"},
		"vet": {map[string]string{"m/p.go": "package p\n\nimport \"fmt\"\n\nfunc F() { " +
			"fmt.Printf(\"%d\\n\", \"x\") }\n"}, "wrong type"},
		"wrong configuration": {map[string]string{".golangci.yml": "version: 7\n"}, "golangci-lint"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{".golangci.yml": config, "m/p.go": "package p\n"}
			maps.Copy(files, c.files)
			err := lint(t.Context(), workspace(t, files), program)
			if c.want == "" {
				must.NoError(t, err)
			} else {
				must.ErrorContains(t, err, c.want)
			}
		})
	}
}
