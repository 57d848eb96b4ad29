// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"fmt"
	"testing"
)

// BenchmarkCache_GetHit is what a cached start pays for knowing that nothing was changed.
func BenchmarkCache_GetHit(b *testing.B) {
	for _, files := range []int{500, 5_000, 20_000} {
		b.Run(fmt.Sprintf("%d_files", files), func(b *testing.B) {
			c := testCache(b)
			s := Spec{Key: "k", Build: building(files)}
			mustGet(b, c, s).Release()
			for b.Loop() {
				mustGet(b, c, s).Release()
			}
		})
	}
}
