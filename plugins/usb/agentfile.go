// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl"
)

// pluginName is the name of the plugin in an agent's configuration, which is that of its file.
const pluginName = "nomad-device-usb"

// readConfig returns the plugin's config in a file or directory of an agent's configuration,
// which is HCL1 or JSON as for Nomad. A file without a block plugin is the config alone, with
// "config { … }" around it or not. binary is the name of this program, under which the agent
// may know the plugin too.
func readConfig(path, binary string) (any, error) {
	files := []string{path}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		files = nil
		for _, pattern := range []string{"*.hcl", "*.json"} {
			found, _ := filepath.Glob(filepath.Join(path, pattern)) // the pattern is valid
			files = append(files, found...)
		}
	}
	var others []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var all map[string]any
		if err := hcl.Decode(&all, string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, blocks := range bodies(all["plugin"]) {
			for _, name := range slices.Sorted(maps.Keys(blocks)) {
				if name != pluginName && name != binary {
					others = append(others, name)
					continue
				}
				for _, block := range bodies(blocks[name]) {
					return block["config"], nil
				}
			}
		}
		if !info.IsDir() && all["plugin"] == nil {
			if config := all["config"]; config != nil {
				return config, nil
			}
			return all, nil
		}
	}
	hint := ""
	if len(others) > 0 {
		hint = fmt.Sprintf(", only %s; the name is that of the file in plugin_dir", quoted(others))
	}
	return nil, fmt.Errorf("%s has no block plugin %q%s", path, pluginName, hint)
}

// bodies are the bodies of a block: a list of maps in HCL1, and also a map in JSON.
func bodies(value any) []map[string]any {
	if body, ok := value.(map[string]any); ok {
		return []map[string]any{body}
	}
	list, _ := value.([]map[string]any)
	return list
}

func quoted(words []string) string {
	return "\"" + strings.Join(words, "\", \"") + "\""
}
