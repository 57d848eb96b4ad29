// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
)

// The options of all drivers are on the page of exec-lite, so the page of remote documents only its own.
func TestOptions_AreDocumented(t *testing.T) {
	schematest.Document(t, "../../docs/reference/remote.md", map[string][]schema.Row{
		"plugin options": schema.Of[driver.Config]().Doc(),
		"task options":   schematest.Own(schema.Of[driver.TaskConfig]().Doc(), schema.Of[core.TaskOptions]().Doc()),
	})
}
