// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

type remainsConfig struct {
	PluginOptions
}

func TestRemains_CountsTheTasksOfAnAgent(t *testing.T) {
	dir, err := os.MkdirTemp("", "r") // short, for a socket
	must.NoError(t, err)
	defer os.RemoveAll(dir)
	state := filepath.Join(dir, "[x") // is no pattern
	for _, dir := range []string{"one/tasks/a", "one/tasks/b", "two/tasks/c", "three"} {
		must.NoError(t, os.MkdirAll(filepath.Join(state, "stub", dir), 0o700))
	}
	in := remains(Plugin[remainsConfig, struct{}]{
		Name: "stub", Remains: func(remainsConfig) []string { return []string{"a cache stays"} },
	})
	config := map[string]any{"state_dir": state}
	for node, want := range map[string]string{
		"one": "it has tasks on this node (2): ", "two": "(1): ", "": "(3): ", "three": "", "four": "",
	} {
		what, err := in(config, node)
		test.Eq(t, []string{"a cache stays"}, what)
		if want == "" {
			test.NoError(t, err, test.Sprint(node))
		} else {
			test.ErrorContains(t, err, want, test.Sprint(node))
		}
	}
	must.NoError(t, os.WriteFile(filepath.Join(state, "stub/three/tasks"), nil, 0o600))
	_, err = in(config, "")
	test.ErrorContains(t, err, "whether it has tasks on this node is unknown: ")
}
