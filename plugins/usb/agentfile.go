// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
)

// pluginName is the name of the plugin in an agent's configuration, which is that of its file.
const pluginName = "nomad-device-usb"

// readConfig returns the plugin's config in a file or directory of an agent's configuration,
// which is HCL1 or JSON as for Nomad. A file without a block plugin is the config alone, with
// "config { … }" around it or not. binary is the name of this program, under which the agent
// may know the plugin too.
func readConfig(path, binary string) (any, error) {
	files, err := agentconfig.Read(path)
	if err != nil {
		return nil, err
	}
	var others []string
	for _, file := range files {
		for _, name := range slices.Sorted(maps.Keys(file.Plugins)) {
			if name == pluginName || name == binary {
				return file.Plugins[name], nil
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
	hint := ""
	if len(others) > 0 {
		hint = fmt.Sprintf(", only %s; the name is that of the file in plugin_dir", quoted(others))
	}
	return nil, fmt.Errorf("%s has no block plugin %q%s", path, pluginName, hint)
}

func quoted(words []string) string {
	return "\"" + strings.Join(words, "\", \"") + "\""
}
