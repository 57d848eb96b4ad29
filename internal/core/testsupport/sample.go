// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import (
	"os"
	"strconv"
	"testing"

	"github.com/shoenig/test/must"
)

// Seed is that of the sample of long tests which is to run, in OUTRIDER_SAMPLE. Without one all
// are to run, and sampled is false.
func Seed(t testing.TB) (seed uint64, sampled bool) {
	t.Helper()
	value := os.Getenv("OUTRIDER_SAMPLE")
	if value == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(value, 10, 32)
	must.NoError(t, err, must.Sprint("OUTRIDER_SAMPLE"))
	return seed, true
}
