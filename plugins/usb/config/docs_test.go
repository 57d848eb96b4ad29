// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"
)

func TestDocs_OptionsMatchTheStructs(t *testing.T) {
	schematest.Document(t, "../../../docs/reference/usb.md", map[string][]schema.Row{
		"plugin options": schema.Of[Config]().Doc(),
	})
}
