// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"

	"github.com/outrider-dev/outrider/internal/core/conformance"
)

func TestMain(m *testing.M) { conformance.Main(m, main) }

func TestDriver_Conforms(t *testing.T) { conformance.Driver{}.Test(t) }
