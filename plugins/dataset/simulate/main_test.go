// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate_test

import (
	"testing"

	"github.com/outrider-dev/outrider/plugins/dataset/simulate/simulatetest"
)

func TestMain(m *testing.M) { simulatetest.Main(m) }
