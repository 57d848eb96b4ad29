// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"maps"
	"slices"
	"strings"

	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// attributes are those of the node's interpreters, which are in Find's order. The versions are minor and full ones, for
// set_contains and set_contains_any. Each minor version has the properties of the interpreter that a task gets which
// requires it. A minor version with only pre-releases is not among the versions: ">=3.15" does not allow 3.15.0rc1
// (PEP 440).
func attributes(found []interpreter.Interpreter) map[string]*pstructs.Attribute {
	all := map[string]*pstructs.Attribute{}
	say := func(value string, name ...string) {
		if value != "" {
			all[strings.Join(name, ".")] = pstructs.NewStringAttribute(value)
		}
	}
	versions, described := map[string]bool{}, map[string]bool{}
	for _, i := range found {
		versions[i.Version] = true
		if !interpreter.IsPreRelease(i.Version) {
			versions[i.Minor] = true
		}
		if described[i.Minor] {
			continue
		}
		described[i.Minor] = true
		say(i.Version, i.Minor, "version")
		say(i.Path, i.Minor, "path")
		say(i.Implementation, i.Minor, "implementation")
		all[i.Minor+".free_threaded"] = pstructs.NewBoolAttribute(i.FreeThreaded)
	}
	sorted := slices.SortedFunc(maps.Keys(versions), func(a, b string) int {
		if minor := strings.Count(a, ".") - strings.Count(b, "."); minor != 0 {
			return minor
		}
		return interpreter.CompareVersions(a, b)
	})
	if len(found) > 0 {
		all["versions"] = pstructs.NewStringAttribute(strings.Join(sorted, ","))
		say(found[0].Version, "default")
		say(found[0].Path, "default", "path")
	}
	return all
}
