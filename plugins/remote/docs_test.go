// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
)

func TestOptions_AreDocumented(t *testing.T) {
	schematest.Document(t, "../../docs/reference/remote.md", map[string]schema.Described{
		"plugin options": schema.Of[driver.Config](), "task options": schema.Of[driver.TaskConfig](),
	})
}
