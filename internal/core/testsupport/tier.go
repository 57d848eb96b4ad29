// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import "testing"

// LongSkip begins the reason of every skip by Long. It is the one reason for which CI accepts a skip (lab/check).
const LongSkip = "long: "

// Long leaves a test to `go tool mage test:all` and says why: it boots a virtual machine, it needs a container, it
// repeats something a thousand times. `go tool mage test` runs the others, by the flag -short of go test.
func Long(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip(LongSkip + why)
	}
}
