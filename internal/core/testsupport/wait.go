// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package testsupport contains helpers for the tests of several packages: waiting for conditions, checking the
// requirements of a test, and inspecting processes and descriptors. It imports no other package of the repository, so
// all packages can use it in tests.
package testsupport

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
)

// Eventually waits until ok returns true. It fails the test after a minute, which is enough even on a busy machine.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(ok), wait.Timeout(time.Minute), wait.Gap(5*time.Millisecond)),
		must.Sprintf("never happened: %s", what))
}

// Within waits until f returns no error. After the timeout it fails the test with f's last error.
func Within(t testing.TB, timeout time.Duration, f func() error) {
	t.Helper()
	must.NoError(t, Poll(timeout, f), must.Sprintf("no success within %v", timeout))
}

// Poll calls f until it returns no error. After the timeout it returns f's last error.
func Poll(timeout time.Duration, f func() error) error {
	return wait.InitialSuccess(wait.ErrorFunc(f), wait.Timeout(timeout), wait.Gap(20*time.Millisecond)).Run()
}
