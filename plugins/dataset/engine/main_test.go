// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"os"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(stepVar) != "" {
		os.Exit(step())
	}
	if os.Getenv(lockVar) != "" {
		os.Exit(holdLock())
	}
	zfsfusetest.Main(m)
}
