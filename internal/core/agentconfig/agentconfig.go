// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package agentconfig reads the configuration files of a Nomad agent, without the types that
// only the agent has.
package agentconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl"
)

// File is one configuration file.
type File struct {
	Path string
	Body map[string]any // HCL1 or JSON, decoded without a type
}

// Read returns the files that an agent with -config=path reads, in its order: the file itself,
// or those of a directory that end in .hcl and .json.
func Read(path string) ([]File, error) {
	paths := []string{path}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		if paths, err = list(path); err != nil {
			return nil, err
		}
	}
	var files []File
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f := File{Path: path}
		if err := hcl.Decode(&f.Body, string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// list leaves out what Nomad does (command/agent/config.go, LoadConfigDir and isTemporaryFile).
func list(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		name := e.Name()
		if ext := filepath.Ext(name); !e.IsDir() && (ext == ".hcl" || ext == ".json") && !strings.HasPrefix(name, ".#") {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths, err
}

// Text is the value of an attribute, empty if there is none.
func (f File) Text(name string) string {
	text, _ := f.Body[name].(string)
	return text
}

// Plugins are the blocks of plugins by their names: what each has as its config, nil for nothing.
func (f File) Plugins() map[string]any {
	all := map[string]any{}
	for _, named := range bodies(f.Body["plugin"]) {
		for name, blocks := range named {
			for _, block := range bodies(blocks) {
				all[name] = block["config"]
			}
		}
	}
	return all
}

// bodies are the bodies of a block: a list of maps in HCL1, and also a map in JSON.
func bodies(value any) []map[string]any {
	if body, ok := value.(map[string]any); ok {
		return []map[string]any{body}
	}
	list, _ := value.([]map[string]any)
	return list
}
