// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestRecord_CutsWaitingAndProgress(t *testing.T) {
	const script = `printf ' building …'
		for i in 1 2 3; do sleep 0.7; printf '\r\033[K building … %d' $i; done; sleep 0.3
		printf '\r\033[K built in %s\n' "$HOME/bin"; sleep 0.3; exit 3`
	home := t.TempDir()
	t.Setenv("HOME", home)
	c, err := record(t.Context(), exec.Command("sh", "-c", script), "build", 5)
	test.ErrorContains(t, err, "exit status 3")
	must.Less(t, 2*pause+rest+pause+5*key+line, c.length)

	file := filepath.Join(t.TempDir(), "build.cast")
	must.NoError(t, c.save(file))
	text, err := os.ReadFile(file)
	must.NoError(t, err)
	var shown strings.Builder
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range lines[1:] {
		var event [3]any
		must.NoError(t, json.Unmarshal([]byte(line), &event))
		shown.WriteString(event[2].(string))
	}
	test.StrContains(t, lines[0], `"height":5,"version":2`)
	test.StrContains(t, shown.String(), "$\033[0m build\r\n building …\r\033[K built in ~/bin\r\n\033[1;32m$")
}
