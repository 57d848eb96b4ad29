// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"path/filepath"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// remains reports what stays on the machine without the plugin, and that tasks run, for an
// uninstall (package install).
func remains[C, T any](p Plugin[C, T]) func(block any, node string) ([]string, error) {
	return func(block any, node string) (what []string, inUse error) {
		config := schema.Of[C]()
		c, err := config.DecodeAgent(block)
		if err != nil {
			c = config.Default()
		}
		if p.Remains != nil {
			what = p.Remains(c)
		}
		o, ok := any(&c).(interface{ pluginOptions() *PluginOptions })
		if !ok {
			return what, nil
		}
		root, err := stateRoot(o.pluginOptions().StateDir, p.Name)
		if err != nil {
			return what, nil // which no agent uses either
		}
		if node == "" {
			node = "*" // those of every agent
		}
		tasks, _ := filepath.Glob(filepath.Join(root, node, "tasks", "*")) // the pattern is valid
		if len(tasks) > 0 {
			inUse = fmt.Errorf("it has tasks on this node (%d): after a restart of the agent without the plugin they "+
				"would run on, and Nomad would start them elsewhere too. Drain the node first (nomad node drain -enable "+
				"-self)", len(tasks))
		}
		return what, inUse
	}
}
