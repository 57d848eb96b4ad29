// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agentconfig

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Block returns the config block of a plugin from an agent's configuration. path is a file or
// directory of HCL1 or JSON, as Nomad reads it. A single file without a block plugin is taken for
// the config itself, with or without "config { … }" around it. plugin is the usual file name of
// the plugin, and binary the path of this program: the block may have either name. Several blocks with a config are
// refused: Nomad takes the last one of them.
func Block(path, plugin, binary string) (any, error) {
	files, err := Read(path)
	if err != nil {
		return nil, err
	}
	var others, at []string
	var found map[string]any
	for _, file := range files {
		for _, name := range slices.Sorted(maps.Keys(file.Plugins)) {
			if name == plugin || name == filepath.Base(binary) {
				if found == nil || file.configs[name] > 0 {
					found = file.Plugins[name]
				}
				for range file.configs[name] {
					at = append(at, file.Path)
				}
				continue
			}
			others = append(others, name)
		}
		if file.Path == path && file.Body["plugin"] == nil { // path is no directory
			if config := file.Body["config"]; config != nil {
				return config, nil
			}
			return file.Body, nil
		}
	}
	switch {
	case len(at) > 1:
		return nil, fmt.Errorf("plugin %q has several blocks, of which Nomad takes the last: keep one of those in %s",
			plugin, strings.Join(slices.Compact(at), " and "))
	case found != nil:
		return found, nil
	}
	hint := ""
	if len(others) > 0 {
		hint = fmt.Sprintf(", only \"%s\"; the name is that of the file in plugin_dir", strings.Join(others, "\", \""))
	}
	return nil, fmt.Errorf("%s has no block plugin %q%s", path, plugin, hint)
}
