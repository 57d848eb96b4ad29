// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !race

package testsupport

// BeginRoles does nothing without the race detector.
func BeginRoles() {}

// EndRoles returns the exit code of the tests.
func EndRoles(code int) int { return code }
