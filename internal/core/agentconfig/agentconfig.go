// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package agentconfig finds the config block of a plugin in the configuration of a Nomad agent,
// without the types that only the agent has.
package agentconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl"
)

// Block returns the config block of a plugin from an agent's configuration. path is a file or
// directory of HCL1 or JSON, as Nomad reads it. A single file without a plugin block is the config
// itself, with or without "config { … }" around it. plugin is the usual file name of the plugin,
// and binary the path of this program: the block may have either name. If several blocks have a
// config, Block returns an error, because Nomad uses only the last one.
func Block(path, plugin, binary string) (any, error) {
	paths, err := list(path)
	if err != nil {
		return nil, err
	}
	var others, at []string
	var found map[string]any
	for _, file := range paths {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		blocks, body, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if file == path && len(blocks) == 0 { // path is a file
			if config := body["config"]; config != nil {
				return config, nil
			}
			return body, nil
		}
		for _, b := range blocks {
			switch {
			case b.Name != plugin && b.Name != filepath.Base(binary):
				others = append(others, b.Name)
			case len(b.Config) > 0:
				found, at = b.Config, append(at, file)
			case found == nil:
				found = map[string]any{}
			}
		}
	}
	hint := ""
	switch {
	case len(at) > 1:
		return nil, fmt.Errorf("plugin %q has several blocks, of which Nomad uses the last: keep one of the blocks in %s",
			plugin, strings.Join(slices.Compact(at), " and "))
	case found != nil:
		return found, nil
	case len(others) > 0:
		slices.Sort(others)
		hint = fmt.Sprintf(", only \"%s\": name the block like the file in plugin_dir", strings.Join(others, "\", \""))
	}
	return nil, fmt.Errorf("%s has no block plugin %q%s", path, plugin, hint)
}

// block is a plugin block, of the same type as in Nomad. A plain map would not do: in JSON files, such as
// those that NixOS writes, nested objects would be decoded into a different shape.
type block struct {
	Name   string         `hcl:",key"`
	Config map[string]any `hcl:"config"`
}

func parse(text string) (blocks []*block, body map[string]any, err error) {
	var typed struct {
		Plugins []*block `hcl:"plugin"`
	}
	err = hcl.Decode(&typed, text)
	if err == nil {
		err = hcl.Decode(&body, text)
	}
	return typed.Plugins, body, err
}

// list returns the files that an agent with -config=path reads, in its order: the file itself, or the files in the
// directory, except those that Nomad ignores (command/agent/config.go, LoadConfigDir and isTemporaryFile).
func list(path string) (paths []string, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		name := e.Name()
		if ext := filepath.Ext(name); !e.IsDir() && (ext == ".hcl" || ext == ".json") && !strings.HasPrefix(name, ".#") {
			paths = append(paths, filepath.Join(path, name))
		}
	}
	return paths, err
}
