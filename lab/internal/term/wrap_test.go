// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package term

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shoenig/test"
)

func TestWrap_BreaksBetweenWords(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"short", "a b\n\nc", "a b\n\nc"},
		{"long", "aaaa bbbb cccc dddd", "aaaa\n  bbbb\n  cccc\n  dddd"},
		{"indented", "  aaaa bbbb cccc", "  aaaa\n    bbbb\n    cccc"},
		{"a long word", "a /usr/local/lib/nomad b", "a\n  /usr/local/lib/nomad\n  b"},
		{"with columns", "ok    a b c", "ok    a\n  b c"},
		{"up to the edge", "aaaa bbbb cccc", "aaaa\n  bbbb\n  cccc"},
		{"letters, not bytes", "äääää ööö", "äääää ööö"},
	} {
		test.Eq(t, tc.want, Wrap(tc.in, 9, "  "), test.Sprint(tc.name))
	}
}

func TestCut_MarksShortenedLines(t *testing.T) {
	test.Eq(t, "äöü…", Cut("äöüäöü", 4))
	test.Eq(t, "äöüä", Cut("äöüä", 4), test.Sprint("a line that fits"))
	test.Eq(t, "…", Cut("äöü", -3), test.Sprint("a terminal without room"))
}

func TestPrinter_FitsTheWidthOfATerminal(t *testing.T) {
	long := strings.Repeat("many words ", 30)
	var b bytes.Buffer
	for _, tty := range []bool{false, true} {
		p := New(&b)
		p.tty = tty
		end := p.Step("Building %s", long)
		p.Progress("%s", long)
		end(nil, "%s", long)
	}
	for line := range strings.Lines(b.String()) {
		for _, shown := range strings.Split(line, "\r\033[K") {
			n := utf8.RuneCountInString(strings.TrimRight(shown, "\n"))
			test.False(t, n > Width, test.Sprintf("%d columns: %q", n, shown))
		}
	}
}
