// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// packageOf is a wheel of a package with so many modules. Its version is 1.0.
func packageOf(name string, modules int) wheel.Wheel {
	files := map[string]string{name + "/__init__.py": ""}
	for i := range modules - 1 {
		files[fmt.Sprintf("%s/module%d.py", name, i)] = moduleSource(name, i)
	}
	return wheel.Wheel{Name: name, Version: "1.0", Files: files}
}

// moduleSource is about 2 kB of functions, so that a module takes what one usually takes to
// be unpacked and compiled.
func moduleSource(pkg string, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\"\"\"Module %d of %s.\"\"\"\n\nimport sys\n", n, pkg)
	for i := range 8 {
		fmt.Fprintf(&b, `

def function_%d_%d(values, limit=%d):
    """Return what is below the limit, in its order."""
    found = []
    for index, value in enumerate(values):
        if value < limit and index %% %d:
            found.append((index, value * %d))
    return sorted(found) or [len(sys.path)]
`, n, i, 100*n+i, i+2, n)
	}
	return b.String()
}
