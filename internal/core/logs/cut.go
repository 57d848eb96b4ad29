// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import "bytes"

// lineSlack is the number of bytes by which a file may exceed its limit to end at the end of a line.
const lineSlack = 64 << 10

// cut decides how the queued bytes are written to a file of size bytes with this limit: take is the number of bytes to
// write, and rotate means that the next file follows. p is the beginning of the queued bytes. midLine means that the
// file ends within a line.
//
// A file ends with the last line that fits. A line that is longer than a file, or that has already begun in this file,
// continues beyond the limit. If it reaches lineSlack bytes beyond the limit, it is cut there.
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
