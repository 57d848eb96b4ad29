// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"
)

// python.md documents only this driver's options. The options that all drivers share are on the page of exec-lite.
func TestOptions_AreDocumented(t *testing.T) {
	schematest.Document(t, "../../../docs/reference/python.md", map[string][]schema.Row{
		"plugin options": schematest.Own(schema.Of[Config]().Doc(), schema.Of[driver.PluginOptions]().Doc()),
		"task options":   schematest.Own(schema.Of[TaskConfig]().Doc(), schema.Of[driver.TaskOptions]().Doc()),
	})
}
