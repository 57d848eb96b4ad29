// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestMain(m *testing.M) { conformance.Main(m, main) }

func TestDriver_Conforms(t *testing.T) {
	testsupport.NeedPython(t)
	conformance.Driver{}.Test(t)
}
