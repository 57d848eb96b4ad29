// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plain

import (
	"testing"

	"github.com/shoenig/test"
)

func TestLine_IsOneOfPrintableText(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "",
		"as it is: ü €":            "as it is: ü €",
		" two\r\n\tlines \n":       "two lines",
		"\x1b[31mred\x1b[0m\x00\a": "[31mred [0m",
		"not \xff UTF-8":           "not ? UTF-8",
		"\u202ereversed\u2028":     "reversed",
	} {
		test.Eq(t, want, Line(text, 0))
		test.Eq(t, want, Line(want, len(want)))
	}
	test.Eq(t, "üü…", Line("üüü", 2))
}
