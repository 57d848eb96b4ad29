// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"hash/crc32"
	"testing"

	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// sampleParts is in how many seeds each cell of a fault table runs once.
const sampleParts = 3

// sampled skips a cell of a fault table that is not in the sample of the seed in
// OUTRIDER_SAMPLE. Without a seed all cells run.
func sampled(t *testing.T) {
	t.Helper()
	if seed, ok := testsupport.Seed(t); ok && !inSample(t.Name(), seed) {
		t.Skipf("not in the sample of seed %d", seed)
	}
}

func inSample(name string, seed uint64) bool {
	return uint64(crc32.ChecksumIEEE([]byte(name)))%sampleParts == seed%sampleParts
}

func TestSample_HasEachCellOnceInConsecutiveSeeds(t *testing.T) {
	for _, name := range []string{"TestFaults_ExitIsExactOrLost/processes/agent_killed", "TestA", ""} {
		for first := range uint64(5) {
			runs := 0
			for seed := first; seed < first+sampleParts; seed++ {
				if inSample(name, seed) {
					runs++
				}
			}
			test.Eq(t, 1, runs, test.Sprintf("%q runs %d times from seed %d on", name, runs, first))
		}
	}
}
