// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package agentconfig finds the config block of a plugin in the configuration files of a Nomad agent. It does not link
// the agent's own configuration package.
package agentconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl"
)

// Block returns the content of a plugin's config block in an agent's configuration. path is a file or a directory in
// HCL1 or JSON, like the value of the agent's -config flag. Block looks for a plugin block with one of two names: the
// parameter plugin, which is the usual name of the plugin's file, or the base name of binary, the path of this program.
// If several such blocks have a config, Block returns an error, since Nomad would silently use the last one.
//
// A file without any plugin block is itself taken as the config, with or without "config { … }" around it.
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
		if file == path && len(blocks) == 0 { // path is a file and not a directory
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
		return nil, fmt.Errorf("plugin %q has several blocks, and Nomad uses only the last one: keep one of the blocks in %s",
			plugin, strings.Join(slices.Compact(at), " and "))
	case found != nil:
		return found, nil
	case len(others) > 0:
		slices.Sort(others)
		hint = fmt.Sprintf(", only \"%s\": use the name of the file in plugin_dir", strings.Join(others, "\", \""))
	}
	return nil, fmt.Errorf("%s has no plugin block %q%s", path, plugin, hint)
}

// block has the same fields as the struct into which Nomad decodes a plugin block. A map cannot replace it: HCL1
// decodes nested objects of JSON files, such as those that NixOS writes, differently into a map.
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

// list returns the files that an agent with -config=path reads, in the same order: path itself or, if it is a
// directory, the configuration files in it. It skips the same files as Nomad (command/agent/config.go, LoadConfigDir
// and isTemporaryFile).
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
