// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestCut_EndsFilesAtLineEnds(t *testing.T) {
	long := strings.Repeat("x", lineSlack)
	for name, c := range map[string]struct {
		queued      string
		size, limit int64
		midLine     bool
		take        int
		rotate      bool
	}{
		"output that fits is taken whole":                          {"ab\ncd", 0, 5, false, 5, false},
		"a file ends with the last line that fits":                 {"a\nb\nc\n", 0, 5, false, 4, true},
		"a line that ends exactly at the limit fits":               {"ab\ncd\n", 0, 3, false, 3, true},
		"a line that does not fit begins the next file":            {"abcdef\n", 3, 5, false, 0, true},
		"a full file at a line's end takes nothing":                {"a\n", 5, 5, false, 0, true},
		"a line that has begun continues beyond the limit":         {"cd\nef\n", 4, 5, true, 3, true},
		"a line longer than a file is not cut":                     {"abcdefgh\ni\n", 0, 5, false, 9, true},
		"the queued part of an unfinished long line is taken":      {"abcdefgh", 0, 5, false, 8, false},
		"beyond the limit the file ends with the current line":     {"i\nj\n", 8, 5, true, 2, true},
		"a line is cut when it is lineSlack beyond the limit":      {long + "yy\n", 0, 1, false, lineSlack + 1, true},
		"a line that ends just before the cut is taken whole":      {long + "\ny", 0, 1, false, lineSlack + 1, true},
		"a file that others made huge takes nothing":               {"abc", 1 << 40, 5, true, 0, true},
		"an old file beyond a smaller limit takes no further line": {"abc\n", 9, 5, false, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			take, rotate := cut([]byte(c.queued), c.size, c.limit, c.midLine)
			must.Eq(t, c.take, take, must.Sprintf("take %d, rotate", take))
			test.Eq(t, c.rotate, rotate, test.Sprintf("take %d, rotate", take))
		})
	}
}
