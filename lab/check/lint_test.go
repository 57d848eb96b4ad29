// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"maps"
	"os/exec"
	"testing"

	"github.com/shoenig/test/must"
)

const goodWorkflow = `on: push
permissions: {}
jobs:
  one:
    runs-on: ubuntu-24.04
    steps:
      - run: echo "$HOME"
`

func TestLint_ReportsFindingsInWorkflowsAndScripts(t *testing.T) {
	_, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Skip("shellcheck is not installed")
	}
	const workflow = ".github/workflows/ci.yml"
	for name, c := range map[string]struct {
		files   map[string]string
		program string
		want    string
	}{
		"no findings": {nil, "", ""},
		"unknown runner": {map[string]string{workflow: "on: push\njobs:\n  one:\n    runs-on: amiga\n    steps:\n" +
			"      - run: true\n"}, "actionlint", `label "amiga" is unknown`},
		"script in a workflow": {map[string]string{workflow: goodWorkflow + "      - run: rm -r $HOME/x\n"},
			"actionlint", "SC2086"},
		"untrusted text": {map[string]string{workflow: goodWorkflow +
			"      - run: echo '${{ github.event.pull_request.title }}'\n"}, "actionlint", "potentially untrusted"},
		"script by its name":       {map[string]string{"m/x.sh": "#!/bin/sh\nrm $1\n"}, "shellcheck", "m/x.sh line 2"},
		"script by its first line": {map[string]string{"m/x": "#!/usr/bin/env bash\nrm $1\n"}, "shellcheck", "m/x line 2"},
		"another language":         {map[string]string{"m/x": "#!/usr/bin/python3\nrm $1\n"}, "shellcheck", ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{workflow: goodWorkflow, "good.sh": "#!/bin/sh\nexit 0\n"}
			maps.Copy(files, c.files)
			root := pinnedWorkspace(t, "actionlint", files)
			for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}} {
				out, err := output(t.Context(), nil, root, "git", args...)
				must.NoError(t, err, must.Sprint(out))
			}
			for program, err := range map[string]error{
				"actionlint": lintWorkflows(t.Context(), root),
				"shellcheck": lintScripts(t.Context(), root),
			} {
				if program == c.program && c.want != "" {
					must.ErrorContains(t, err, c.want)
				} else {
					must.NoError(t, err)
				}
			}
		})
	}
}
