// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"runtime/debug"
	"testing"

	"github.com/shoenig/test/must"
)

func TestFlow_LetsGarbageGatherWhileItIsFast(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(33))
	percent := func() int {
		now := debug.SetGCPercent(-1)
		debug.SetGCPercent(now)
		return now
	}
	var a, b flow
	a.add(fastFlow - 1)
	must.False(t, a.tick())
	must.Eq(t, 33, percent())
	a.add(fastFlow / 2)
	a.add(fastFlow / 2)
	b.add(fastFlow)
	must.Eq(t, fastPercent, percent())
	must.True(t, a.tick())
	must.False(t, a.tick())
	must.Eq(t, fastPercent, percent(), must.Sprint("the other flow is fast yet"))
	b.end()
	b.end()
	must.Eq(t, 33, percent())
}
