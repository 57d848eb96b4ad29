// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestMoments_RefuseAStartThatComesLate(t *testing.T) {
	m := moments{filepath.Join(t.TempDir(), "nodes")}
	first := Moment{BootID: "a", Nanos: 100}
	must.NoError(t, m.check("node", first))
	must.NoError(t, m.check("node", first))
	must.NoError(t, m.check("node", Moment{BootID: "a", Nanos: 200}))
	must.ErrorContains(t, m.check("node", first), "connected anew")
	must.NoError(t, m.check("another", first))
	must.NoError(t, m.check("node", Moment{BootID: "b", Nanos: 1})) // the node was restarted
	must.ErrorContains(t, m.check("../node", first), "no id of a node")
	must.NoError(t, os.WriteFile(filepath.Join(m.dir, "node"), []byte("{"), 0o600))
	must.NoError(t, m.check("node", first))
	entries, err := os.ReadDir(m.dir)
	must.NoError(t, err)
	must.Len(t, 2, entries)
}

func TestNow_GoesOn(t *testing.T) {
	first, err := Now()
	must.NoError(t, err)
	second, err := Now()
	must.NoError(t, err)
	must.Eq(t, first.BootID, second.BootID)
	must.Greater(t, first.Nanos, second.Nanos)
}
