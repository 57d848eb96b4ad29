// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package vm_test tests on a kernel of its own (package vm) what this machine may
// not have: cgroup v2 alone, and a reboot.
package vm_test

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/build"
)

// repository is the root of the checkout.
func repository(t *testing.T) string {
	t.Helper()
	root, err := build.Root(".")
	must.NoError(t, err)
	return root
}
