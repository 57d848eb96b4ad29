// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plain

import (
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestTail_KeepsTheEnd(t *testing.T) {
	var tail Tail
	for range 10 {
		_, err := tail.Write([]byte(strings.Repeat("x", 1000) + "\n"))
		test.NoError(t, err)
	}
	test.Eq(t, TailSize, len(tail))
	test.StrHasSuffix(t, "x\n", string(tail))
}

func TestText_HasNoTerminalSequences(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"ü €\n  two lines\n":         "ü €\n  two lines\n",
		"\x1b[31mred\x1b[0m\r\a":     " [31mred [0m  ",
		"\x9b2J \u009b2J \u202e\xff": "?2J  2J  ?",
	} {
		test.Eq(t, want, Text(text))
	}
}

func TestLine_ReturnsPrintableText(t *testing.T) {
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

func TestUncoloured_HasNoTerminalSequences(t *testing.T) {
	for text, want := range map[string]string{
		"\x1b[1;31mred\x1b[0m \x1bM€":               "red €",
		"\x1b]0;title\aa \x1b]8;;link\x1b\\b\x1b]x": "a b",
	} {
		test.Eq(t, want, Uncoloured(text))
	}
}

func TestJSON_HasNoTerminalSequences(t *testing.T) {
	var out strings.Builder
	must.NoError(t, JSON(&out, map[string]string{"name": "<\x1b[31m\u009b2J\x7f>"}))
	test.Eq(t, "{\n  \"name\": \"<\\u001b[31m\\u009b2J\\u007f>\"\n}\n", out.String())
}
