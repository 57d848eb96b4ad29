// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"
)

func TestOptions_AreDocumented(t *testing.T) {
	schematest.Document(t, "../../docs/reference/exec-lite.md", map[string][]schema.Row{
		"plugin options": schema.Of[Config]().Doc(), "task options": schema.Of[TaskConfig]().Doc(),
	})
}
