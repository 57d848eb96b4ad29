// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package testsupport has the helpers that the tests of several packages share: waiting for a condition, what a
// test requires of the machine, the processes and descriptors that it looks at, and the sample that is to run. It
// imports no other package of the repository, so that the tests of each can use it.
package testsupport

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
)

// Eventually waits until ok returns true. It fails the test after a minute, which is long enough on a busy machine.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(ok), wait.Timeout(time.Minute), wait.Gap(5*time.Millisecond)),
		must.Sprintf("never happened: %s", what))
}

// Within waits until f returns no error. It fails the test with f's last error when the time is over.
func Within(t testing.TB, timeout time.Duration, f func() error) {
	t.Helper()
	must.NoError(t, Poll(timeout, f), must.Sprintf("not within %v", timeout))
}

// Poll calls f until it returns no error, and returns its last error when the time is over.
func Poll(timeout time.Duration, f func() error) error {
	return wait.InitialSuccess(wait.ErrorFunc(f), wait.Timeout(timeout), wait.Gap(20*time.Millisecond)).Run()
}
