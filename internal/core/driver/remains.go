// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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
		tasks, err := countTasks(root, node)
		switch {
		case err != nil:
			inUse = fmt.Errorf("whether it has tasks on this node is unknown: %w", err)
		case tasks > 0:
			inUse = fmt.Errorf("it has tasks on this node (%d): after a restart of the agent without the plugin they "+
				"would run on, and Nomad would start them elsewhere too. Drain the node first (nomad node drain -enable "+
				"-self)", tasks)
		}
		return what, inUse
	}
}

// countTasks counts the tasks of an agent below root, or those of every agent if node is empty.
func countTasks(root, node string) (count int, err error) {
	dirs := []string{filepath.Join(root, node)}
	if node == "" {
		if dirs, err = stores(root); err != nil {
			return 0, err
		}
	}
	for _, dir := range dirs {
		tasks, err := os.ReadDir(filepath.Join(dir, "tasks"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		count += len(tasks)
	}
	return count, nil
}
