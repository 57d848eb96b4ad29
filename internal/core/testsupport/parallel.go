// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import (
	"flag"
	"strconv"
)

// RunInParallel lets n tests run in parallel, more than the machine has processors, for tests that mostly wait. It
// parses the flags; -parallel has priority. Call it in TestMain, before m.Run.
func RunInParallel(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(n))
	}
}
