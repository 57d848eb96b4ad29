// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"

	"github.com/outrider-dev/outrider/plugins/dataset/policy"
	"github.com/outrider-dev/outrider/plugins/dataset/slot"
)

// The test compares the tables of options in the documentation with the code. With -update it writes the tables.
func TestDocs_HaveTheOptions(t *testing.T) {
	schematest.Document(t, "../../docs/reference/dataset.md", map[string][]schema.Row{
		"plugin options": schema.Of[slot.Config]().Doc(), "operator file": schema.Of[policy.File]().Doc()})
}
