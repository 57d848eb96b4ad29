// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"
)

// The page has only this driver's own options: the page of exec-lite documents the options that every driver has.
func TestOptions_AreDocumented(t *testing.T) {
	schematest.Document(t, "../../../docs/reference/python.md", map[string]schema.Described{
		"plugin options": schematest.Own(schema.Of[Config](), schema.Of[driver.PluginOptions]()),
		"task options":   schematest.Own(schema.Of[TaskConfig](), schema.Of[driver.TaskOptions]()),
	})
}
