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

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// pluginName is by what an agent's configuration knows the plugin: its file.
const pluginName = "nomad-device-usb"

// readConfig finds the plugin's config in a file or directory of an agent's
// configuration, read by the language that Nomad reads it in (HCL1 or JSON), or
// takes a file that is the config alone. binary is the name of this program, under
// which the configuration may have it, too.
func readConfig(path, binary string) (any, error) {
	files := []string{path}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		files = nil
		for _, pattern := range []string{"*.hcl", "*.json"} {
			found, _ := filepath.Glob(filepath.Join(path, pattern)) // the pattern is right
			files = append(files, found...)
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s has no file *.hcl or *.json", path)
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
		switch {
		case info.IsDir():
		case len(all) == 1 && all["config"] != nil:
			return all["config"], nil
		case isConfig(all):
			return all, nil
		}
	}
	hint := ""
	if len(others) > 0 {
		hint = fmt.Sprintf(", only %s; the name is that of the file in plugin_dir", quoted(others))
	}
	return nil, fmt.Errorf("%s has no block plugin %q%s", path, pluginName, hint)
}

// isConfig says whether these are options of the plugin, or meant to be, and not of
// an agent.
func isConfig(all map[string]any) bool {
	var options []string
	for _, row := range schema.Of[Config]().Doc() {
		if !strings.Contains(row.Option, ".") {
			options = append(options, row.Option)
		}
	}
	return slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(key string) bool {
		return slices.Contains(options, key) || didYouMean(key, options) != ""
	})
}

// bodies are the bodies of a block: HCL1 has lists of maps, JSON maps.
func bodies(value any) []map[string]any {
	switch value := value.(type) {
	case map[string]any:
		return []map[string]any{value}
	case []map[string]any:
		return value
	}
	return nil
}
