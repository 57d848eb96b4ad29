// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wheeltest

import (
	"syscall"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// UV is the uv that tests use: $UV, or else that of the PATH. If there is none that as can run (nil is this
// process's user), the test is skipped.
func UV(t testing.TB, as *syscall.Credential) string {
	t.Helper()
	uv := wheel.FindUV(as)
	if uv == "" {
		t.Skip("there is no uv that the user who builds can run")
	}
	return uv
}
