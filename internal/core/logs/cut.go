// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import "bytes"

// lineSlack is how far a file may grow beyond its size to end at a line's end.
const lineSlack = 64 << 10

// cut says how many of the queued bytes, of which p are the first, go into a
// file that has size bytes and shall not have more than limit, and whether the
// next file begins after them. midLine says that the file does not end with a
// line's end.
//
// A file ends with the last line that fits. A line that fits in no file, or of
// which a part is already in this one, goes on beyond the limit; lineSlack beyond
// it, it is cut.
func cut(p []byte, size, limit int64, midLine bool) (take int, rotate bool) {
	n := int64(len(p))
	room, hard := limit-size, limit+lineSlack-size
	if n <= room {
		return len(p), false
	}
	if room > 0 {
		if i := bytes.LastIndexByte(p[:room], '\n'); i >= 0 {
			return i + 1, true
		}
	}
	if size > 0 && !midLine || hard <= 0 {
		return 0, true
	}
	from := max(room, 0)
	if i := bytes.IndexByte(p[from:min(n, hard)], '\n'); i >= 0 {
		return int(from) + i + 1, true
	}
	if n >= hard {
		return int(hard), true
	}
	return len(p), false
}
