// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/dataset/slot"
)

// What can't be seen may be volumes, which an agent without the plugin would drop.
func TestRemains_UnknownIsInUse(t *testing.T) {
	testsupport.NeedRoot(t)
	file := filepath.Join(t.TempDir(), "dataset.hcl")
	_, inUse := remains(slot.Config{File: file})
	must.NoError(t, inUse) // no classes
	for name, c := range map[string]struct{ text, says string }{
		"not valid":  {"class {", file + " is not valid"},
		"no pool":    {`class "fast" { root = "nowhere" }`, `class "fast": the pool nowhere is not there`},
		"no classes": {"", ""},
	} {
		must.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
		_, inUse := remains(slot.Config{File: file})
		if c.says == "" {
			must.NoError(t, inUse, must.Sprint(name))
			continue
		}
		must.ErrorContains(t, inUse, "whether there are volumes or slots is not known", must.Sprint(name))
		must.StrContains(t, inUse.Error(), c.says)
		must.StrNotContains(t, inUse.Error(), "\n")
	}
}
