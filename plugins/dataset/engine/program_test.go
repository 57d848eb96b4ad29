// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// slow is a reader of what a program writes that takes longer than the program itself.
type slow struct{ strings.Builder }

func (s *slow) Write(p []byte) (int, error) {
	time.Sleep(1500 * time.Millisecond)
	return s.Builder.Write(p)
}

func TestProgram_HasItsOutputReadToTheEnd(t *testing.T) {
	var out slow
	must.NoError(t, program("/bin/echo").pipe(t.Context(), nil, &out, "all of it"))
	must.Eq(t, "all of it\n", out.String())
}
