// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/nomad"
)

const (
	pythonDriver = "python"
	pythonPlugin = agent.DriverPrefix + pythonDriver
)

// pythonConfig puts the cache of environments below the lab, so that lab:down removes it: the default directory is
// shared by the machine.
const pythonConfig = `state_dir = "${state_dir}"
cache_dir = "${state_dir}/environments"`

// pythons is a line about the interpreters that the python driver has found, or about what it lacks.
func pythons(drivers []nomad.Driver) string {
	for _, d := range drivers {
		if d.Name == pythonDriver && d.Undetected() {
			return "Python   " + d.Description
		}
		if d.Name != pythonDriver || d.Attributes["versions"] == "" {
			continue
		}
		line := "Python   " + strings.Join(full(d.Attributes["versions"]), ", ")
		return line + "; uv " + d.Attributes["uv.version"]
	}
	return ""
}

// full returns the full versions in the attribute, which also lists the minor ones: "3.9,3.11,3.9.16,3.11.2".
func full(versions string) []string {
	return slices.DeleteFunc(strings.Split(versions, ","), func(v string) bool { return strings.Count(v, ".") < 2 })
}
