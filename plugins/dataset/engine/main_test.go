// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(stepVar) != "" {
		os.Exit(step())
	}
	os.Exit(m.Run())
}
