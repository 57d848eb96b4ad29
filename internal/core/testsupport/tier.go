// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import "testing"

// LongSkip is the prefix of the reason that Long gives when it skips a test. CI accepts no other skips (lab/check).
const LongSkip = "long: "

// Long reserves a test for `go tool mage test:all` and states the reason, for example that it boots a virtual machine,
// needs a container, or repeats something a thousand times. `go tool mage test` passes -short, which skips the test.
func Long(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip(LongSkip + why)
	}
}
