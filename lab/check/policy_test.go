// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// SECURITY.md must show users the commands with which the release workflow verifies a release before publishing it.
func TestSecurityPolicy_HasTheCommandsOfTheReleaseWorkflow(t *testing.T) {
	page, err := os.ReadFile("../../SECURITY.md")
	must.NoError(t, err)
	workflow, err := os.ReadFile("../../.github/workflows/release.yml")
	must.NoError(t, err)
	var commands []string
	_, block, _ := strings.Cut(string(page), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", "")) {
		words := strings.Fields(line)
		// remove the names of zip files: the workflow has a variable instead
		words = slices.DeleteFunc(words, func(w string) bool { return strings.HasSuffix(w, ".zip") })
		commands = append(commands, strings.Join(words, " "))
	}
	must.Len(t, 4, commands)
	ran := strings.Join(strings.Fields(strings.ReplaceAll(string(workflow), "\\\n", "")), " ")
	ran = strings.ReplaceAll(ran, ` "$zip"`, "")
	ran = strings.ReplaceAll(ran, "$GITHUB_REF_NAME", "plugins/exec-lite/v0.1.0")
	ran = strings.ReplaceAll(ran, "--strict", "--ignore-missing") // users need not download every file
	for _, command := range commands {
		test.StrContains(t, ran, command)
	}
}
