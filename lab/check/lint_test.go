// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const goodWorkflow = `on: push
permissions: {}
jobs:
  one:
    runs-on: ubuntu-24.04
    steps:
      - run: echo "$HOME"
`

// lint must fail if any module has a finding, even in a test, and must report every finding. Once the linters are
// built, lint must work without a network.
func TestLint_ReportsFindingsOfEachLinter(t *testing.T) {
	testsupport.NeedPrograms(t, "shellcheck")
	const config = "version: \"2\"\nlinters:\n  default: none\n  enable: [govet, gosec]\nformatters:\n  enable: [gofmt]\n"
	const narrows = "func F(n int64) uint8 { return uint8(n) }\n"
	const narrowsInTest = "package p\n\nimport \"testing\"\n\n" +
		"func TestF(t *testing.T) { n := int64(t.Name()[0]) << 8; t.Log(uint8(n)) }\n"
	script, err := filepath.Abs("../../.ci/lint")
	must.NoError(t, err)
	lint := func(files map[string]string) (string, error) {
		files[".golangci.yml"] = config
		root := workspace(t, files)
		for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}} {
			_, err := output(t.Context(), nil, root, "git", args...)
			must.NoError(t, err)
		}
		return output(t.Context(), nil, root, script)
	}
	t.Setenv("GOPROXY", "off")
	out, err := lint(map[string]string{
		"m/p.go": "package p\n", ".github/workflows/ci.yml": goodWorkflow, "good.sh": "#!/bin/sh\nexit 0\n",
		"python": "#!/usr/bin/python3\nrm $1\n", "page.md": "The task has its own group.\n",
	})
	must.NoError(t, err, must.Sprint(out))

	out, err = lint(map[string]string{
		"m/p.go": "package p\n\n" + narrows, "lab/l.go": "package lab\n\n" + narrows, "m/p_test.go": narrowsInTest,
		"m/format.go": "package p\n\nfunc  G() {}\n",
		"m/vet.go":    "package p\n\nimport \"fmt\"\n\nfunc H() { fmt.Printf(\"%d\\n\", \"x\") }\n",
		".github/workflows/ci.yml": goodWorkflow + "      - run: rm -r $HOME/x\n" +
			"      - run: echo '${{ github.event.pull_request.title }}'\n  two:\n    runs-on: amiga\n    steps: []\n",
		"m/x.sh": "#!/bin/sh\nrm $1\n", "m/x": "#!/usr/bin/env bash\nrm $1\n",
		"page.md": "The task has a group " + "of its own.\n",
	})
	must.Error(t, err)
	for _, want := range []string{
		"m/p.go:3", "lab/l.go:3", "m/p_test.go:5", "not properly formatted", "wrong type", "SC2086",
		"potentially untrusted", `label "amiga" is unknown`, "m/x.sh line 2", "m/x line 2", "page.md:1:",
		"write instead: its own X",
	} {
		test.StrContains(t, out, want)
	}
}
