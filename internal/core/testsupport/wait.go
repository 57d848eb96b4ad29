// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package testsupport contains helpers for the tests of several packages: waiting for conditions, checking the
// requirements of a test, and inspecting processes and descriptors. It imports no other package of the repository, so
// all packages can use it in tests.
package testsupport

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// Eventually waits until ok returns true. It fails the test after a minute, which is enough even on a busy machine.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	err := poll(time.Minute, 5*time.Millisecond, func() error {
		if !ok() {
			return fmt.Errorf("never happened: %s", what)
		}
		return nil
	})
	must.NoError(t, err)
}

// Within waits until f returns no error. After the timeout it fails the test with f's last error.
func Within(t testing.TB, timeout time.Duration, f func() error) {
	t.Helper()
	must.NoError(t, Poll(timeout, f), must.Sprintf("no success within %v", timeout))
}

// Poll calls f until it returns no error. After the timeout it returns f's last error.
func Poll(timeout time.Duration, f func() error) error {
	return poll(timeout, 20*time.Millisecond, f)
}

// poll calls f until it returns no error, with pauses of at least gap. After the timeout it returns f's last error.
func poll(timeout, gap time.Duration, f func() error) error {
	for end := time.Now().Add(timeout); ; {
		begin := time.Now()
		err := f()
		now := time.Now()
		if err == nil || now.After(end) {
			return err
		}
		// many tests that read all of /proc without such pauses would use all processors
		time.Sleep(max(gap, 9*now.Sub(begin)))
	}
}
