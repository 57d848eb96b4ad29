// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"
)

// With -update it writes the tables.
func TestDocs_HaveTheOptions(t *testing.T) {
	schematest.Document(t, "../../../docs/remote.md", map[string]schema.Described{
		"plugin options": schema.Of[Config](), "task options": schema.Of[TaskConfig](),
	})
}
