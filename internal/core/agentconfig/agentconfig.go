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
	Path    string
	Body    map[string]any            // HCL1 or JSON, decoded without a type
	Plugins map[string]map[string]any // the blocks of plugins by their names: the config of each, empty for none

	configs map[string]int // how many blocks of a plugin have a config
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
		f, err := parse(path, string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// parse decodes the plugins into the type that Nomad has for them: of JSON, in which NixOS
// writes the file, the decoder gives nested objects another shape in a map alone.
func parse(path, text string) (File, error) {
	f := File{Path: path, Plugins: map[string]map[string]any{}, configs: map[string]int{}}
	var typed struct {
		Plugins []*struct {
			Name   string         `hcl:",key"`
			Config map[string]any `hcl:"config"`
		} `hcl:"plugin"`
	}
	if err := hcl.Decode(&typed, text); err != nil {
		return f, err
	}
	for _, p := range typed.Plugins {
		if p.Config == nil {
			p.Config = map[string]any{}
		}
		if len(p.Config) > 0 {
			f.configs[p.Name]++
		}
		f.Plugins[p.Name] = p.Config
	}
	return f, hcl.Decode(&f.Body, text)
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
