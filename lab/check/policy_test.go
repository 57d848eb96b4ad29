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

// Users verify a release with the commands that the release workflow runs before it publishes.
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
		// omit the names of zips: the workflow uses others
		words = slices.DeleteFunc(words, func(w string) bool { return strings.HasSuffix(w, ".zip") })
		commands = append(commands, strings.Join(words, " "))
	}
	must.Len(t, 4, commands)
	ran := strings.Join(strings.Fields(strings.ReplaceAll(string(workflow), "\\\n", "")), " ")
	ran = strings.ReplaceAll(ran, ` "$zip"`, "")
	ran = strings.ReplaceAll(ran, "$GITHUB_REF_NAME", "plugins/exec-lite/v0.1.0")
	ran = strings.ReplaceAll(ran, "--strict", "--ignore-missing") // --strict requires all files, which users do not have
	for _, command := range commands {
		test.StrContains(t, ran, command)
	}
}
