// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package vm_test tests on a kernel of its own (package vm) what this machine may
// not have: cgroup v2 alone, and a reboot.
package vm_test

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/build"
)

// eventually polls until f has no objection, and fails with the last one.
func eventually(t testing.TB, within time.Duration, f func() error) {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		must.False(t, time.Now().After(end), must.Sprintf("not within %v: %v", within, err))
	}
}

// repository is the root of the checkout.
func repository(t *testing.T) string {
	t.Helper()
	root, err := build.Root(".")
	must.NoError(t, err)
	return root
}
