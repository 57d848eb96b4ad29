// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package slot

import (
	"os"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"
)

// roleVar is an environment variable with which the test binary runs as the plugin.
const roleVar = "OUTRIDER_DATASET_TEST_ROLE"

var plugin = device.Plugin[Config]{Name: "dataset", New: New}

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) == "plugin" {
		device.Main(plugin)
		return
	}
	zfsfusetest.Main(m)
}
