// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// The values of the plugin option unveil.
const (
	unveilOff    = "off"
	unveilStrict = "strict"
)

// unveil returns the paths that cmd may use, or nil if this node does not confine tasks.
func unveil(p PluginOptions, o TaskOptions, cfg *drivers.TaskConfig, cmd *task.Command) (*task.Unveil, error) {
	switch {
	case p.Unveil == unveilOff && len(o.Unveil) > 0:
		return nil, errors.New("unveil can't be used on this node, which does not confine tasks: remove the option, or " +
			"constrain the job to nodes where the driver's attribute unveil is not \"off\"")
	case p.Unveil == unveilOff:
		return nil, nil
	case len(o.Unveil) > 0 && !p.UnveilByTask:
		return nil, errors.New("unveil can't be used on this node, because its operator does not allow " +
			"paths from jobs (unveil_by_task): remove unveil")
	}
	u := &task.Unveil{Defaults: p.UnveilDefaults, Strict: p.Unveil == unveilStrict}
	add := func(modes, path string, optional bool) {
		u.Paths = append(u.Paths, task.UnveiledPath{Path: path, Modes: modes, Optional: optional})
	}
	add("rwxc", cfg.TaskDir().Dir, false)
	add("rwxc", cfg.TaskDir().SharedAllocDir, true)
	if cmd.Isolation.Tmp {
		add("rwxc", "/tmp", true)
		add("rwxc", "/var/tmp", true)
	}
	if cmd.Isolation.IPC {
		add("rwxc", "/dev/shm", true)
	}
	for _, m := range cmd.Mounts {
		modes := "rwxc"
		if m.ReadOnly {
			modes = "rx"
		}
		add(modes, m.Target, false)
	}
	for _, d := range cmd.Devices {
		// unveil the whole directory: a device that is plugged in again has a new file in it
		at := path.Dir(d.HostPath)
		if at == "/dev" {
			at = d.HostPath
		}
		add("rw", at, false)
	}
	operators, err := unveiledPaths("unveil_paths", p.UnveilPaths)
	if err != nil {
		return nil, err
	}
	authors, err := unveiledPaths("unveil", o.Unveil)
	for i := range authors {
		authors[i].Author = true
	}
	u.Paths = slices.Concat(u.Paths, operators, authors)
	return u, err
}

// unveiledPaths parses the paths of an option.
func unveiledPaths(option string, texts []string) (paths []task.UnveiledPath, err error) {
	for _, text := range texts {
		path, err := task.ParseUnveiled(option, text)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// unveilLimit describes what this kernel lacks for the confinement that the options require, or returns "".
func unveilLimit(p PluginOptions, abi int) string {
	switch {
	case p.Unveil == unveilOff || abi >= landlock.Complete:
		return ""
	case abi == 0:
		return "this kernel has no Landlock, so tasks can't be confined"
	}
	return fmt.Sprintf("this kernel has Landlock version %d, but complete confinement needs version %d", abi,
		landlock.Complete)
}
